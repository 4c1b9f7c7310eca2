"""Tables: with colour and fitted to the window on a terminal, plain aligned text in a pipe."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

# A cell is its text, or its text with a style.
Cell = str | tuple[str, str]

_GAP = 2  # characters between two columns
_LONG_WORD = 20  # longer words, e.g. paths, are folded before a column is left out


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def grid(
    headers: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    right: Sequence[str] = (),
    width: int | None = None,
    unwrapped: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> Table:
    """Return a table for a terminal of `width`; columns named in `right` are right-aligned, empty columns are left out.

    Nothing is cut: cells wrap at words, except in the columns named in `unwrapped`. If that is not enough, the columns in `optional` are left
    out, one after another.
    """
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold bright_black")
    visible = [column for column in range(len(headers)) if any(_text(row[column]) for row in rows)]
    cells = {column: [headers[column], *(_text(row[column]) for row in rows)] for column in visible}
    natural = {column: max(map(len, cells[column])) for column in visible}
    least = {
        column: natural[column] if headers[column] in unwrapped else min(_longest_word(cells[column]), _LONG_WORD) for column in visible
    }
    for name in optional:
        if width is not None and _total(least[column] for column in visible) > width:
            visible = [column for column in visible if headers[column] != name]
    widths = _fitted({column: natural[column] for column in visible}, least, width)
    for column in visible:
        table.add_column(headers[column], justify="right" if headers[column] in right else "left", overflow="fold", width=widths[column])
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else Text(*cell) for cell in (row[column] for column in visible)))
    return table


def _longest_word(cells: Sequence[str]) -> int:
    return max((len(word) for cell in cells for word in cell.split()), default=0)


def _total(widths: Iterable[int]) -> int:
    columns = list(widths)
    return sum(columns) + _GAP * (len(columns) - 1)


def _fitted(natural: dict[int, int], least: dict[int, int], width: int | None) -> dict[int, int]:
    """Return each column's width: its natural one, else at least that of its words; if the sum is still too much, the widest columns are folded."""
    widths = dict(natural)
    while width is not None and _total(widths.values()) > max(width, len(widths) * (_GAP + 1)):
        loosest = max(widths, key=lambda column: (widths[column] - least[column], widths[column]))
        if widths[loosest] <= least[loosest]:
            loosest = max(widths, key=lambda column: widths[column])
            least[loosest] -= 1
        widths[loosest] -= 1
    return widths


def plain(headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: Sequence[str] = ()) -> str:
    """Return a table as aligned text: nothing is cut, and an empty cell is a dash, so that columns can be counted."""
    lines = [list(headers), *([_text(cell) or "-" for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    justified = (
        (cell.rjust(width) if header in right else cell.ljust(width) for cell, width, header in zip(line, widths, headers, strict=True))
        for line in lines
    )
    return "\n".join("  ".join(line).rstrip() for line in justified)


def fact_lines(facts: Iterable[tuple[str, str]], styles: Mapping[str, str] | None = None) -> Table:
    """Return facts for a terminal, one a line: the name, then the value, which wraps at words; `styles` maps names to the styles of values."""
    lines = Table.grid(padding=(0, _GAP, 0, 0))
    lines.add_column(style="bright_black", no_wrap=True)
    lines.add_column(overflow="fold")
    for name, value in facts:
        lines.add_row(Text(name), Text(value, style=(styles or {}).get(name, "")))
    return lines


def show(console: Console, headers: Sequence[str], rows: Sequence[Sequence[Cell]], **form: Sequence[str]) -> None:
    """Print a table in the form that fits the console; `form` has the arguments `right`, `unwrapped` and `optional` of `grid`."""
    if console.is_terminal:
        console.print(grid(headers, rows, width=console.width, **form))
    else:
        print(plain(headers, rows, right=form.get("right", ())))
