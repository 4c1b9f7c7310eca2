"""Patterns of the Game of Life as run-length encoded text, the format in which they are published. Imports no TensorFlow.

A line `x = 3, y = 3, rule = B3/S23`, then rows ended by `$` and all of them by `!`: `b` is a dead cell, `o` a living one, and a number
before any of these repeats it. Lines that start with `#` are comments. Source: https://conwaylife.com/wiki/Run_Length_Encoded
"""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from trainer.workloads.errors import WorkloadError

Board = np.ndarray[Any, np.dtype[np.uint8]]  # [rows, columns], 1 lives

_HEADER = re.compile(r"\s*x\s*=\s*(\d+)\s*,\s*y\s*=\s*(\d+)\s*(?:,\s*rule\s*=\s*(\S+?)\s*)?", re.IGNORECASE)
_A_HEADER = "a line such as x = 3, y = 3, rule = B3/S23"
_CONWAY = ("b3/s23", "23/3")
_ITEM = re.compile(r"(\d*)([bo$!])|\s+")
_MAX_CELLS = 100_000_000  # protects the memory from a mistyped number
_MAX_WIDTH = 70  # characters of a line, as the format demands for writers


def read(text: str, origin: str) -> Board:
    """Return the pattern in `text`; `origin` is the file, for messages.

    Raises:
        WorkloadError: the text is not in this format, its cells exceed its x and y, or its rule is not B3/S23.
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")]
    if not lines:
        raise _wrong(f"{origin}:1", "no header", _A_HEADER)
    board = _empty(lines[0][1], f"{origin}:{lines[0][0]}")
    height, width = board.shape
    row = column = 0
    for location, count, letter in _items(lines[1:], origin):
        if letter == "!":
            return board
        if letter == "$":
            row, column = row + count, 0
            continue
        if column + count > width or (row >= height and letter == "o"):
            raise _wrong(
                location,
                f"cells in row {row + 1}, column {column + count}",
                f"no more than x = {width}, y = {height}, as the header has it",
            )
        board[row : row + 1, column : column + count] = letter == "o"
        column += count
    raise _wrong(f"{origin}:{lines[-1][0]}", "no end", "! after the last row")


def _empty(header: str, location: str) -> Board:
    """Return a board of the header's size without living cells."""
    match = _HEADER.fullmatch(header)
    if match is None:
        raise _wrong(location, "no header", _A_HEADER)
    width, height, rule = int(match[1]), int(match[2]), (match[3] or _CONWAY[0]).partition(":")[0].lower()
    if rule not in _CONWAY:
        raise _wrong(location, f"rule {match[3]}", "B3/S23, Conway's own")
    if not 0 < width * height <= _MAX_CELLS:
        raise _wrong(location, f"x = {width}, y = {height}", f"a pattern of 1 to {_MAX_CELLS:,} cells")
    return np.zeros((height, width), np.uint8)


def _items(lines: list[tuple[int, str]], origin: str) -> Iterator[tuple[str, int, str]]:
    """Yield the location, the repeat count and the letter of each b, o, $ and !."""
    for number, line in lines:
        at = 0
        while at < len(line):
            item = _ITEM.match(line, at)
            if item is None:
                raise _wrong(f"{origin}:{number}:{at + 1}", repr(line[at]), "b, o, $, ! and numbers before them")
            at = item.end()
            if item[2]:
                yield f"{origin}:{number}", int(item[1] or 1), item[2]


def write(board: Board) -> str:
    """Return the whole board as text: x and y preserve dead rows and columns at its edges."""
    rows = ["".join(_run(len(run[0]), run[0][0]) for run in re.finditer(r"o+|b+(?=o)", _letters(row))) for row in board]
    body = re.sub(r"\$+", lambda ends: _run(len(ends[0]), "$"), "$".join(rows).rstrip("$")) + "!"
    items = re.findall(r"\d*[bo$!]", body)
    lines = [""]
    for item in items:
        if len(lines[-1]) + len(item) > _MAX_WIDTH:
            lines.append("")
        lines[-1] += item
    height, width = board.shape
    return "\n".join([f"x = {width}, y = {height}, rule = B3/S23", *lines]) + "\n"


def _letters(row: Any) -> str:
    return "".join("o" if cell else "b" for cell in row)


def _run(count: int, letter: str) -> str:
    return f"{count if count > 1 else ''}{letter}"


def _wrong(location: str, found: str, expected: str) -> WorkloadError:
    return WorkloadError(f"{location}: found {found}; expected {expected}. Correct it there, or name another file in train.params.pattern.")
