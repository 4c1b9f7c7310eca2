"""The first board of life: random, or a pattern in the middle of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.running import EXAMPLES
from trainer.programs.life import first_board
from trainer.workloads.catalog import LifeParams
from trainer.workloads.errors import WorkloadError


def params(**fields: Any) -> LifeParams:
    return LifeParams.model_validate(fields)


def test_random_cells_follow_the_seed_and_the_density() -> None:
    board = first_board(params(height=100, width=200, density=0.3), seed=1)
    assert board.shape == (100, 200)
    assert board.mean() == pytest.approx(0.3, abs=0.02)
    assert np.array_equal(board, first_board(params(height=100, width=200, density=0.3), seed=1))
    assert not np.array_equal(board, first_board(params(height=100, width=200, density=0.3), seed=2))


def test_a_pattern_is_in_the_middle(tmp_path: Path) -> None:
    (tmp_path / "bar.rle").write_text("x = 3, y = 1\n3o!")
    board = first_board(params(pattern=str(tmp_path / "bar.rle"), height=3, width=5), seed=0)
    assert board.tolist() == [[0] * 5, [0, 1, 1, 1, 0], [0] * 5]


def test_the_examples_pattern_is_a_gun_and_an_eater() -> None:
    board = first_board(params(pattern=str(EXAMPLES / "life" / "glider-gun.rle")), seed=0)
    assert board.sum() == 36 + 7


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"pattern": "nowhere.rle"}, r"train\.params\.pattern is 'nowhere\.rle': .*/nowhere\.rle cannot be read: No such file"),
        ({"pattern": str(EXAMPLES / "life" / "glider-gun.rle"), "width": 20}, r"is 16 rows and 36 columns; the board has 50 and 20"),
    ],
)
def test_a_pattern_that_cannot_be_read_or_does_not_fit_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        first_board(params(**fields), seed=0)
