"""The same table on a terminal and in a pipe."""

import io

import pytest
from rich.console import Console

from launcher.cli import tables
from launcher.cli.errors import wrapped

HEADERS = ("TASK", "STEP", "EXIT", "REASON")
ROWS: list[tuple[tables.Cell, ...]] = [
    (("chief", "cyan"), "1,000", "", "a reason that is much longer than the window is wide, from end to end"),
    ("worker-10", "5", "", ""),
]


def test_plain_is_aligned_uncut_and_has_a_dash_for_an_empty_cell() -> None:
    assert tables.plain(HEADERS, ROWS, right=("STEP",)).splitlines() == [
        "TASK        STEP  EXIT  REASON",
        "chief      1,000  -     a reason that is much longer than the window is wide, from end to end",
        "worker-10      5  -     -",
    ]


def test_terminal_leaves_empty_columns_out_and_stays_within_the_window() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=40, color_system="truecolor")
    tables.show(console, HEADERS, ROWS)
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "EXIT" not in output
    assert "\x1b[36mchief" in output
    plain = Console(file=io.StringIO(), force_terminal=True, width=40, color_system=None)
    tables.show(plain, HEADERS, ROWS, unwrapped=("TASK",))
    lines = plain.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) > 3
    assert max(map(len, lines)) <= 40


NAMES = ("NAME", "STATE", "METRICS", "TOOK")
RUNS: list[tuple[tables.Cell, ...]] = [
    ("mnist-ps", "succeeded", "evaluation: loss 0.02  accuracy 0.993", "1 min 05 s"),
    ("a-name-that-is-as-long-as-any-name-may-be-in-a-spec", "running", "", ""),
]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("rows", [RUNS[:1], RUNS])
def test_no_name_is_cut_and_no_word_broken_however_narrow_the_window(width: int, rows: list[tuple[tables.Cell, ...]]) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    tables.show(console, NAMES, rows, unwrapped=NAMES[:2], optional=("TOOK", "METRICS"))
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, output.splitlines())) <= width
    assert "…" not in output
    words = output.split()
    if width > 60 or len(rows) == 1:
        assert {str(row[0]) for row in rows} <= set(words)
        assert "succeeded" in words
    assert set(words) & {"loss", "accuracy"} in (set(), {"loss", "accuracy"})
    folded = "".join(line.partition(" ")[0] for line in output.splitlines()[1:])
    assert all(str(row[0]) in folded for row in rows)


def test_facts_wrap_at_words_beside_their_names() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=30, color_system=None)
    console.print(tables.fact_lines([("reason", "the chief failed on its first attempt")]))
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert lines == ["reason  the chief failed on", "        its first attempt"]


def test_errors_wrap_at_words_and_keep_commands_whole() -> None:
    text = "follow it with `launcher logs -f mnist`, or stop it"
    assert wrapped(text, None, 8) == text
    assert wrapped(text, 30, 8) == "follow it with\n`launcher logs -f mnist`, or\nstop it"
