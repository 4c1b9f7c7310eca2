"""The same table on a terminal and in a pipe."""

import io

from rich.console import Console

from launcher.cli import tables

HEADERS = ("TASK", "STEP", "EXIT", "REASON")
ROWS: list[tuple[tables.Cell, ...]] = [
    (("chief", "cyan"), "1,000", "", "a reason that is much longer than the window is wide, from end to end"),
    ("worker-10", "5", "", ""),
]


def test_plain_is_aligned_uncut_and_has_a_dash_for_nothing() -> None:
    assert tables.plain(HEADERS, ROWS, right=("STEP",)).splitlines() == [
        "TASK        STEP  EXIT  REASON",
        "chief      1,000  -     a reason that is much longer than the window is wide, from end to end",
        "worker-10      5  -     -",
    ]


def test_terminal_leaves_empty_columns_out_and_stays_within_the_window() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=40, color_system="truecolor")
    tables.show(console, HEADERS, ROWS)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "EXIT" not in written
    assert "\x1b[36mchief" in written
    plain = Console(file=io.StringIO(), force_terminal=True, width=40, color_system=None)
    tables.show(plain, HEADERS, ROWS)
    lines = plain.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) > 3
    assert max(map(len, lines)) <= 40
