"""Frames of the engine's log stream become lines, wherever they are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.backend.docker import log_stream
from launcher.backend.docker.log_stream import lines
from launcher.cli.output_lines import raw
from trainer.events import parse

FIRST, SECOND = "2026-01-31T10:00:00.500000000Z", "2026-01-31T10:00:01.000000000Z"


def frame(stamp: str, written: bytes) -> bytes:
    return stamp.encode() + b" " + written


def test_a_line_in_several_frames_has_the_timestamp_of_the_first() -> None:
    stamped = list(lines([frame(FIRST, b"begins, "), frame(SECOND, b"ends\n"), frame(SECOND, b"next\n")], "chief"))
    assert [(stamp, line.text) for stamp, line in stamped] == [(FIRST, "begins, ends"), (SECOND, "next")]
    assert [line.time for _, line in stamped] == [1769853600.5, 1769853601.0]


@pytest.mark.parametrize(
    "written, shown",
    [(b"10 %\r20 %\r\n", "20 %"), (b"caf\xe9\n", "caf\ufffd"), (b"\n", ""), (b"no end", "no end")],
    ids=["progress bar", "no UTF-8", "empty", "without an end"],
)
def test_a_line_is_shown_as_on_a_terminal(written: bytes, shown: str) -> None:
    ((stamp, line),) = lines([frame(FIRST, written)], "chief")
    assert (stamp, line.text, line.task) == (FIRST, shown, "chief")


def test_an_invalid_timestamp_loses_the_time_but_not_the_line() -> None:
    ((_, line),) = lines([b"x" * 31 + b"text\n"], "chief")
    assert (line.time, line.text) == (0.0, "text")


def test_a_line_that_is_too_long_is_split_and_no_part_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream, "LONGEST_LINE", 10)
    event = b'{"event":"started","attempt":1}'
    parts = [line for _, line in lines([frame(FIRST, b"x" * 11), frame(SECOND, event + b"\n"), frame(SECOND, event + b"\n")], "chief")]
    assert [raw(line) for line in parts] == [b"x" * 11, event, event]
    assert [parse(line.text) is None for line in parts] == [True, True, False]


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), min_size=1))
def test_lines_that_arrive_together_are_read_unchanged(texts: list[str]) -> None:
    frames = b"".join(frame(FIRST, text.encode() + b"\n") for text in texts)
    assert [line.text for _, line in lines([frames], "chief")] == texts
