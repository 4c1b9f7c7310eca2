"""How long a run that has ended is followed: until its last line is shown."""

import itertools
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from launcher.backend.model import Backend
from launcher.cli import follow
from launcher.cli.interrupts import Interrupts
from launcher.runs.status import LogLine, RunStatus, State
from tests.golden_messages import Golden

ENDED = RunStatus("digits", "local", State.SUCCEEDED)


class Shown:
    """The output that a user sees: the lines of tasks, and the launcher's own."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.messages: list[str] = []

    def event(self, event: object) -> None: ...

    def output(self, line: LogLine) -> None:
        self.lines.append(line.text)

    def status(self, status: RunStatus) -> None: ...

    def say(self, message: str) -> None:
        self.messages.append(message)


def follow_ended(lines: Iterator[LogLine], monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Follow a run that has ended and has these lines left. Each reading of its clock advances it by five seconds."""
    clock = itertools.count(step=5.0)
    monkeypatch.setattr(follow, "time", SimpleNamespace(monotonic=lambda: next(clock), time=time.time, sleep=time.sleep))
    backend = SimpleNamespace(status=lambda _: ENDED, reconcile=lambda _: [], logs=lambda *_, **__: lines)
    shown = Shown()
    options = {"stop_description": "", "logs_command": "launcher logs digits --on docker --runs elsewhere"}
    assert follow.follow(cast("Backend", backend), "digits", ["chief"], shown, Interrupts(), since=0.0, **options) is ENDED
    return shown


def test_every_line_of_a_run_that_ended_is_shown_however_long_that_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = follow_ended((LogLine(0.0, "chief", str(number)) for number in range(30_000)), monkeypatch)
    assert shown.lines == [str(number) for number in range(30_000)]
    assert shown.messages == []


def test_a_log_reader_that_delivers_nothing_more_is_abandoned_with_a_notice(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    hangs = threading.Event()

    def one_line() -> Iterator[LogLine]:
        yield LogLine(0.0, "chief", "one")
        hangs.wait(60)

    shown = follow_ended(one_line(), monkeypatch)
    hangs.set()
    assert shown.lines == ["one"]
    golden(*shown.messages)
