"""Tables as plain text, for logs and for files in results/."""

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"-?[\d,.]+(e[+-]?\d+)?")


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: the headers, then the rows; columns of numbers stand to the right."""
    columns = list(zip(headers, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [bool(cells) and all(map(_NUMBER.fullmatch, cells)) for _, *cells in columns]
    return [_line(row, widths, right) for row in (headers, *rows)]


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if to_the_right else cell.ljust(width) for cell, width, to_the_right in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(padded).rstrip()
