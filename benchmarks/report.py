"""The tables of `make bench`: each group, ours against each baseline, and memory; for a terminal and in Markdown."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.contenders import COMPARISONS, CONTENDERS, GROUPS
from benchmarks.measuring import Measured

BUSY = 0.5  # load average above which figures mean little
_TITLES = {contender.name: contender.title for contender in CONTENDERS}
_PROGRAM = ("program", "steps/s", "slowest-fastest", "gradients/s", "first step, s", "last loss", "accuracy")
_RATIO = ("ours", "baseline", "ratio", "aim", "first step")
_MEMORY = ("program", "group", "role", "peak, MB", "its own, MB")
_GROUP = {contender.name: contender.group for contender in CONTENDERS}


@dataclass(frozen=True)
class Compared:
    """Ours against a baseline, both measured: ratios above 1 are in our favour."""

    ours: str
    baseline: str
    of: str
    aim: float | None
    speed_ratio: float
    first_step_ratio: float


@dataclass(frozen=True)
class Sheet:
    """A table as text: a title, columns, rows. The first `texts` columns are words, the others numbers."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    texts: int = 1


def compare(measured: Mapping[str, Measured]) -> list[Compared]:
    """Return the comparisons whose two programs were measured."""
    rows = []
    for comparison in COMPARISONS:
        ours, baseline = measured.get(comparison.ours), measured.get(comparison.baseline)
        if ours and baseline:
            rate = (
                ours.gradients_per_second / baseline.gradients_per_second
                if comparison.of == "gradients"
                else ours.steps_per_second / baseline.steps_per_second
            )
            first = baseline.seconds_to_first_step / ours.seconds_to_first_step
            rows.append(Compared(comparison.ours, comparison.baseline, comparison.of, comparison.aim, round(rate, 2), round(first, 2)))
    return rows


def sheets(measured: Mapping[str, Measured], comparisons: Sequence[Compared]) -> list[Sheet]:
    """Return the tables of the measurements, without empty columns."""
    tables = []
    for group, title in GROUPS.items():
        rows = [_program(name, row) for name, row in measured.items() if _GROUP[name] == group]
        if rows:
            tables.append(_without_empty(Sheet(title, _PROGRAM, rows)))
        ratios = [_ratio(line) for line in comparisons if _GROUP[line.ours] == group]
        if ratios:
            tables.append(_without_empty(Sheet("Ours against each baseline; above 1 is in our favour", _RATIO, ratios, texts=2)))
    memory = [
        (_TITLES[name], _GROUP[name], role, f"{peak.resident:,.0f}", f"{peak.own:,.0f}")
        for name, row in measured.items()
        for role, peak in row.memory.items()
    ]
    if memory:
        tables.append(Sheet("Peak resident memory of one task of each role; its own: without mapped files", _MEMORY, memory, texts=3))
    return tables


def _program(name: str, row: Measured) -> tuple[str, ...]:
    several = row.gradients_per_second != row.steps_per_second
    return (
        _TITLES[name],
        f"{row.steps_per_second:,.0f}" if row.steps_per_second >= 100 else f"{row.steps_per_second:.1f}",
        f"{row.slowest:,.0f}-{row.fastest:,.0f}" if row.slowest != row.fastest else "",
        f"{row.gradients_per_second:,.0f}" if several else "",
        f"{row.seconds_to_first_step:.1f}",
        f"{row.last_loss:.4f}",
        "" if row.accuracy is None else f"{row.accuracy:.2%}",
    )


def _ratio(line: Compared) -> tuple[str, ...]:
    first = f"{line.first_step_ratio}x" if line.of == "steps" else ""
    return (_TITLES[line.ours], _TITLES[line.baseline], f"{line.speed_ratio}x", "" if line.aim is None else f"{line.aim}", first)


def _without_empty(sheet: Sheet) -> Sheet:
    kept = [i for i in range(len(sheet.columns)) if any(row[i] for row in sheet.rows)]
    rows = [tuple(row[i] for i in kept) for row in sheet.rows]
    return Sheet(sheet.title, tuple(sheet.columns[i] for i in kept), rows, sheet.texts)


def show(tables: Sequence[Sheet], facts: Mapping[str, object], *, terminal: bool) -> None:
    """Print the tables for people, and the facts about the machine."""
    console = Console(width=None if terminal else 130)
    for sheet in tables:
        table = Table(title=sheet.title)
        for place, column in enumerate(sheet.columns):
            table.add_column(column, justify="left" if place < sheet.texts else "right")
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)
    console.print(", ".join(f"{name} {value}" for name, value in facts.items()))
    if float(str(facts["load_before"])) > BUSY:
        console.print(f"The machine was busy when this began (load {facts['load_before']}): the figures are not to be relied on.")


def markdown(tables: Sequence[Sheet], facts: Mapping[str, object]) -> str:
    """Return the same in Markdown."""
    parts = [", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items()) + "."]
    if float(str(facts["load_before"])) > BUSY:
        parts.append(f"**The machine was busy when this began (load {facts['load_before']}): the figures are not to be relied on.**")
    for sheet in tables:
        rule = ["---" if place < sheet.texts else "---:" for place in range(len(sheet.columns))]
        lines = [_line(sheet.columns), _line(rule), *map(_line, sheet.rows)]
        parts += [f"**{sheet.title}**", "\n".join(lines)]
    return "\n\n".join(parts)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write(file: Path, name: str, text: str) -> None:
    """Put `text` between the lines `<!-- name -->` and `<!-- /name -->` of a file, replacing the text between them.

    Raises ValueError if the file has no such lines.
    """
    before = file.read_text(encoding="utf-8")
    between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not between.search(before):
        raise ValueError(f"{file} has no lines <!-- {name} --> and <!-- /{name} -->, between which the tables go; add them")
    file.write_text(between.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", before), encoding="utf-8")
