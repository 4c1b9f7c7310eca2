"""Films of boards: what a reader of GIFs sees."""

import io

import numpy as np
from PIL import Image

from trainer.programs.pictures import animation, picture

BLINKER = [np.array(rows, np.uint8) for rows in ([[0, 1, 0], [0, 1, 0], [0, 1, 0]], [[0, 0, 0], [1, 1, 1], [0, 0, 0]])]


def test_a_film_has_every_board_for_its_time_and_repeats() -> None:
    with Image.open(io.BytesIO(animation(BLINKER, 5, 200))) as film:
        assert film.format == "GIF"
        assert film.size == (15, 15)
        assert getattr(film, "n_frames") == 2  # noqa: B009 - Pillow's type has it only for GIFs
        assert film.info["loop"] == 0
        for number, board in enumerate(BLINKER):
            film.seek(number)
            assert film.info["duration"] == 200
            assert np.array_equal(np.asarray(film.convert("L")), picture(board, 5))


def test_living_cells_are_black_squares() -> None:
    shown = picture(BLINKER[0], 2)
    assert shown.shape == (6, 6)
    assert shown[:, 2:4].max() == 0
    assert shown[:, :2].min() == 255
