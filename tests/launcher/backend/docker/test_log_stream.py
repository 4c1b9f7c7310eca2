"""Frames of the engine's answer become lines, however they are cut."""

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


def test_a_line_of_several_frames_is_one_with_the_stamp_of_its_beginning() -> None:
    found = list(lines([frame(FIRST, b"begins, "), frame(SECOND, b"ends\n"), frame(SECOND, b"next\n")], "chief"))
    assert [(stamp, line.text) for stamp, line in found] == [(FIRST, "begins, ends"), (SECOND, "next")]
    assert [line.time for _, line in found] == [1769853600.5, 1769853601.0]


@pytest.mark.parametrize(
    "written, shown",
    [(b"10 %\r20 %\r\n", "20 %"), (b"caf\xe9\n", "caf\ufffd"), (b"\n", ""), (b"no end", "no end")],
    ids=["progress bar", "no UTF-8", "empty", "without an end"],
)
def test_how_a_line_is_shown(written: bytes, shown: str) -> None:
    ((stamp, line),) = lines([frame(FIRST, written)], "chief")
    assert (stamp, line.text, line.task) == (FIRST, shown, "chief")


def test_a_stamp_that_is_none_costs_the_time_and_not_the_line() -> None:
    ((_, line),) = lines([b"x" * 31 + b"said\n"], "chief")
    assert (line.time, line.text) == (0.0, "said")


def test_a_line_too_long_comes_in_parts_of_which_none_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream, "LONGEST_LINE", 10)
    event = b'{"event":"started","attempt":1}'
    found = [line for _, line in lines([frame(FIRST, b"x" * 11), frame(SECOND, event + b"\n"), frame(SECOND, event + b"\n")], "chief")]
    assert [raw(line) for line in found] == [b"x" * 11, event, event]
    assert [parse(line.text) is None for line in found] == [True, True, False]


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), min_size=1))
def test_all_that_was_written_at_once_comes_as_it_was(texts: list[str]) -> None:
    together = b"".join(frame(FIRST, text.encode() + b"\n") for text in texts)
    assert [line.text for _, line in lines([together], "chief")] == texts
