"""Films of boards, as a reader of GIFs sees them."""

import io

import numpy as np
from PIL import Image

from trainer.programs.life import animation_size
from trainer.programs.rendering import animation, picture
from trainer.workloads.catalog import LifeParams

BLINKER = [np.array(rows, np.uint8) for rows in ([[0, 1, 0], [0, 1, 0], [0, 1, 0]], [[0, 0, 0], [1, 1, 1], [0, 0, 0]])]


def test_a_film_has_every_board_for_its_time_and_repeats() -> None:
    with Image.open(io.BytesIO(animation([picture(board, 5) for board in BLINKER], 200))) as film:
        assert film.format == "GIF"
        assert film.size == (15, 15)
        assert getattr(film, "n_frames") == 2  # noqa: B009 - Pillow's type has it only for GIFs
        assert film.info["loop"] == 0
        for number, board in enumerate(BLINKER):
            film.seek(number)
            assert film.info["duration"] == 200
            assert np.array_equal(np.asarray(film.convert("L")), picture(board, 5))


def test_living_cells_are_black_squares() -> None:
    pixels = picture(BLINKER[0], 2)
    assert pixels.shape == (6, 6)
    assert pixels[:, 2:4].max() == 0
    assert pixels[:, :2].min() == 255


def film_of(**params: int) -> tuple[int, int, list[str]]:
    notices: list[str] = []
    cell, frames = animation_size(notices.append, LifeParams(**params))  # type: ignore[arg-type]  # only numbers
    return cell, frames, notices


def test_a_film_that_fits_has_the_requested_size() -> None:
    assert film_of(height=50, width=50) == (4, 300, [])
    assert film_of(height=50, width=50, generations=10) == (4, 10, [])
    assert film_of(height=10_000, width=10_000, frames=0) == (4, 0, [])


def test_the_film_of_a_large_board_is_made_smaller_with_a_notice() -> None:
    assert film_of(height=1000, width=1000) == (1, 300, ["the board is large: life.gif shows 300 generations, a cell 1 pixels wide"])
    assert film_of(height=10_000, width=10_000)[:2] == (1, 3)
