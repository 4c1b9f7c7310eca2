"""Answers of the engine that bring nothing for long are given up, so that who reads them asks again."""

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from launcher.backend.docker import event_stream
from launcher.backend.docker.engine import Engine
from launcher.backend.docker.event_stream import EngineWatch, _OpenStreams


class Answer:
    """A connection that is closed to end its reader; it may be closed already."""

    def __init__(self, *, broken: bool = False) -> None:
        self.closed = 0
        self._broken = broken

    def close(self) -> None:
        self.closed += 1
        if self._broken:
            raise OSError(9, "Bad file descriptor")


def test_only_those_that_are_silent_are_closed_and_once() -> None:
    streams, silent, talks, broken = _OpenStreams(), Answer(), Answer(), Answer(broken=True)
    streams.opened("broken", broken)
    streams.opened("silent", silent)
    streams.opened("talks", talks)
    streams.close(silent_for=60)
    assert (silent.closed, talks.closed, broken.closed) == (0, 0, 0)
    time.sleep(0.3)
    streams.received("talks")
    for _ in range(2):
        streams.close(silent_for=0.2)
        assert (silent.closed, talks.closed, broken.closed) == (1, 0, 1)
    # Its reader asks again, and is heard of again.
    again = Answer()
    streams.opened("silent", again)
    streams.close(silent_for=0.2)
    streams.received("nobody")
    assert again.closed == 0
    streams.close(silent_for=0)
    assert (again.closed, talks.closed) == (1, 1)


class Stream:
    """An answer that brings nothing until it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        self.closed.wait()
        return iter(())

    def close(self) -> None:
        self.closed.set()


class SilentEngine:
    """An engine, and its client, whose answers bring nothing, and end once the engine ends; each is put in a queue when it is asked for."""

    def __init__(self) -> None:
        self.client = self.api = self
        self._ended = False
        self._answers: list[Stream] = []
        self.asked: dict[str, queue.Queue[Stream]] = {"events": queue.Queue(), "log": queue.Queue()}

    def events(self, **_: object) -> Stream:
        return self._answer("events")

    def logs(self, *_: object, **_options: object) -> Stream:
        return self._answer("log")

    def _answer(self, of: str) -> Stream:
        stream = Stream()
        self._answers.append(stream)
        if self._ended:
            stream.close()
        self.asked[of].put(stream)
        return stream

    def end(self) -> None:
        self._ended = True
        for stream in self._answers:
            stream.close()

    def next(self, of: str) -> Stream:
        try:
            return self.asked[of].get(timeout=30)
        except queue.Empty:
            raise AssertionError(f"waited 30 s for the {of} to be asked for") from None


def test_a_watch_gives_up_answers_that_bring_nothing_and_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"_SILENT": 0.2, "_POLL_INTERVAL": 0.05, "_RETRY_INTERVAL": 0.01, "_IDLE_INTERVAL": 0.01}.items():
        monkeypatch.setattr(event_stream, name, seconds)
    engine = SilentEngine()
    watching = EngineWatch(cast("Engine", engine), "toy", {"chief": "toy-chief-1"}, queue.SimpleQueue())
    try:
        for of in ("events", "log"):
            first, second = engine.next(of), engine.next(of)
            assert first is not second
            assert first.closed.is_set()
    finally:
        engine.end()
        watching.close(30)
