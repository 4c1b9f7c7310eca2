"""Patterns of the Game of Life as text: read, written, refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trainer.programs import rle
from trainer.workloads.errors import WorkloadError

GLIDER = "#C a comment\nx = 3, y = 3, rule = B3/S23\nbob$2bo$3o!\ntext after the end is not read\n"


def test_a_glider_is_read() -> None:
    assert rle.read(GLIDER, "glider.rle").tolist() == [[0, 1, 0], [0, 0, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    "text, rows",
    [
        ("x = 2, y = 2\n2o$2o!", [[1, 1], [1, 1]]),
        ("x=4,y=1,rule=b3/s23:T4,1\n o\n 2b o !", [[1, 0, 0, 1]]),
        ("x = 2, y = 4, rule = 23/3\no3$bo!", [[1, 0], [0, 0], [0, 0], [0, 1]]),
        ("x = 3, y = 1\n!", [[0, 0, 0]]),
    ],
)
def test_valid_text_is_read(text: str, rows: list[list[int]]) -> None:
    assert rle.read(text, "a.rle").tolist() == rows


@pytest.mark.parametrize(
    "text, message",
    [
        ("", r"a\.rle:1: found no header"),
        ("bob$2bo$3o!", r"a\.rle:1: found no header"),
        ("x = 3, y = 3, rule = B36/S23\n3o!", r"a\.rle:1: found rule B36/S23; expected B3/S23"),
        ("x = 0, y = 3\n!", r"expected a pattern of 1 to"),
        ("x = 100000, y = 100000\n!", r"expected a pattern of 1 to"),
        ("x = 2, y = 1\n3o!", r"a\.rle:2: found cells in row 1, column 3; expected no more than x = 2"),
        ("x = 2, y = 1\n2o$2o!", r"found cells in row 2"),
        ("x = 2, y = 1\n2x!", r"a\.rle:2:1: found '2'; expected b, o"),
        ("x = 2, y = 1\n#\n2o", r"a\.rle:3: found no end; expected ! after the last row"),
    ],
)
def test_invalid_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        rle.read(text, "a.rle")


@given(arrays(np.uint8, st.tuples(st.integers(1, 12), st.integers(1, 80)), elements=st.integers(0, 1)))
def test_a_written_pattern_can_be_read(board: rle.Board) -> None:
    text = rle.write(board)
    assert np.array_equal(rle.read(text, "again.rle"), board)
    assert max(map(len, text.splitlines())) <= 70
