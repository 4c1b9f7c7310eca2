"""Tables: with colour and fitted to the window on a terminal, plain aligned text in a pipe."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

# A cell is its text, or its text with a style.
Cell = str | tuple[str, str]


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def grid(headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: Sequence[str] = ()) -> Table:
    """Return a table for a terminal; columns named in `right` hold numbers, columns that are empty throughout are left out."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold bright_black")
    kept = [column for column in range(len(headers)) if any(_text(row[column]) for row in rows)]
    for column in kept:
        last = column == kept[-1]
        table.add_column(headers[column], justify="right" if headers[column] in right else "left", no_wrap=not last, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else Text(*cell) for cell in (row[column] for column in kept)))
    return table


def plain(headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: Sequence[str] = ()) -> str:
    """Return the same table as aligned text: nothing is cut, and an empty cell is a dash, so columns can be counted."""
    lines = [list(headers), *([_text(cell) or "-" for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    justified = (
        (cell.rjust(width) if header in right else cell.ljust(width) for cell, width, header in zip(line, widths, headers, strict=True))
        for line in lines
    )
    return "\n".join("  ".join(line).rstrip() for line in justified)


def show(console: Console, headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: Sequence[str] = ()) -> None:
    """Print a table in the form that fits the console."""
    if console.is_terminal:
        console.print(grid(headers, rows, right=right))
    else:
        print(plain(headers, rows, right=right))
