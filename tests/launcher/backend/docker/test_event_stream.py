"""Streams of the engine that are idle for long are closed, so that their readers open new ones."""

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from launcher.backend.docker import event_stream
from launcher.backend.docker.engine import Engine
from launcher.backend.docker.event_stream import EventReader, _OpenStreams


class Connection:
    """A connection that is closed to end its reader; a broken one was closed before."""

    def __init__(self, *, broken: bool = False) -> None:
        self.closed = 0
        self._broken = broken

    def close(self) -> None:
        self.closed += 1
        if self._broken:
            raise OSError(9, "Bad file descriptor")


def test_only_idle_streams_are_closed_and_only_once() -> None:
    streams, idle, talks, broken = _OpenStreams(), Connection(), Connection(), Connection(broken=True)
    streams.opened("broken", broken)
    streams.opened("idle", idle)
    streams.opened("talks", talks)
    streams.close(idle_for=60)
    assert (idle.closed, talks.closed, broken.closed) == (0, 0, 0)
    time.sleep(0.3)
    streams.received("talks")
    for _ in range(2):
        streams.close(idle_for=0.2)
        assert (idle.closed, talks.closed, broken.closed) == (1, 0, 1)
    # Its reader opens a new stream, whose idle time counts from then.
    reopened = Connection()
    streams.opened("idle", reopened)
    streams.close(idle_for=0.2)
    streams.received("unknown")
    assert reopened.closed == 0
    streams.close(idle_for=0)
    assert (reopened.closed, talks.closed) == (1, 1)


class Stream:
    """A stream without data, which ends once it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        self.closed.wait()
        return iter(())

    def close(self) -> None:
        self.closed.set()


class SilentEngine:
    """An engine and its client, whose streams are idle and end with the engine; each is put in a queue when it is opened."""

    def __init__(self) -> None:
        self.client = self.api = self
        self._ended = False
        self._streams: list[Stream] = []
        self.opened: dict[str, queue.Queue[Stream]] = {"events": queue.Queue(), "log": queue.Queue()}

    def events(self, **_: object) -> Stream:
        return self._open("events")

    def logs(self, *_: object, **_options: object) -> Stream:
        return self._open("log")

    def _open(self, kind: str) -> Stream:
        stream = Stream()
        self._streams.append(stream)
        if self._ended:
            stream.close()
        self.opened[kind].put(stream)
        return stream

    def end(self) -> None:
        self._ended = True
        for stream in self._streams:
            stream.close()

    def next(self, kind: str) -> Stream:
        try:
            return self.opened[kind].get(timeout=30)
        except queue.Empty:
            raise AssertionError(f"waited 30 s for a stream of the {kind}") from None


def test_a_reader_closes_idle_streams_and_opens_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"_IDLE_TIMEOUT": 0.2, "_POLL_INTERVAL": 0.05, "_RETRY_INTERVAL": 0.01, "_IDLE_INTERVAL": 0.01}.items():
        monkeypatch.setattr(event_stream, name, seconds)
    engine = SilentEngine()
    reader = EventReader(cast("Engine", engine), "toy", {"chief": "toy-chief-1"}, queue.SimpleQueue())
    try:
        for kind in ("events", "log"):
            first, second = engine.next(kind), engine.next(kind)
            assert first is not second
            assert first.closed.is_set()
    finally:
        engine.end()
        reader.close(30)
