"""Reads the output of every task and the engine's events, by threads, into one queue."""

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from launcher.backend.docker import log_stream
from launcher.backend.docker.engine import ERRORS, Engine
from launcher.render import labels
from launcher.runs.status import LogLine

_RETRY_INTERVAL = 0.3  # seconds between two readings of the events, or of a log
_IDLE_INTERVAL = 2.0  # the same after several empty answers, since each reading makes the engine read the whole log
# A stream without data for so many seconds is opened again: the connection to a remote engine can be lost without an error, and
# the client would wait forever.
_IDLE_TIMEOUT = 30.0
_POLL_INTERVAL = 2.0
_JOIN_TIMEOUT = 0.1
# Errors of reading, besides the client's, if another thread closes the stream: its connection is closed under the reader.
_CLOSED = (*ERRORS, ValueError, AttributeError)


@dataclass(frozen=True)
class LineWritten:
    """A task wrote a line."""

    task: str
    line: LogLine


@dataclass(frozen=True)
class ContainerEnded:
    """A task's container ended, with this exit code; the engine may start it again."""

    task: str
    code: int


ContainerEvent = LineWritten | ContainerEnded
Inbox = queue.SimpleQueue[ContainerEvent]


class _OpenStreams:
    """The engine's streams that are being read, by their readers, and when each last received data."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, tuple[Any, float]] = {}

    def opened(self, reader: str, stream: Any) -> None:
        """Note a stream that is about to be read."""
        with self._lock:
            self._open[reader] = (stream, time.monotonic())

    def received(self, reader: str) -> None:
        """Note that a reader's stream received data."""
        with self._lock:
            if reader in self._open:
                self._open[reader] = (self._open[reader][0], time.monotonic())

    def idle_seconds(self, reader: str) -> float:
        """Return the seconds since a reader's stream last received data; infinity if none is open."""
        with self._lock:
            return time.monotonic() - self._open[reader][1] if reader in self._open else math.inf

    def close(self, *, idle_for: float) -> None:
        """Close the streams that have received nothing for `idle_for` seconds; their readers open new ones."""
        before = time.monotonic() - idle_for
        with self._lock:
            idle = {reader: stream for reader, (stream, last) in self._open.items() if last <= before}
            for reader in idle:
                del self._open[reader]
        for stream in idle.values():
            with contextlib.suppress(*_CLOSED):  # over ssh it cannot be closed, and ssh itself notices a lost connection
                stream.close()


class EventReader:
    """Follows the containers of a run until it is closed, across restarts of the containers and of the engine."""

    def __init__(self, engine: Engine, run: str, containers: dict[str, str], inbox: Inbox) -> None:
        self._engine, self._run, self._inbox = engine, run, inbox
        self._closing = threading.Event()
        self._streams = _OpenStreams()
        # The time of the first event that is not known yet: seconds with nine decimals, as the engine's API takes it.
        self._since: Any = None
        self._logs = {
            task: threading.Thread(target=self._follow, args=(task, container), name=f"log of {task}", daemon=True)
            for task, container in containers.items()
        }
        others = [
            threading.Thread(target=self._retry_until_closed, args=(listen,), name=listen.__name__, daemon=True)
            for listen in (self._events, self._reopen_idle)
        ]
        for thread in (*self._logs.values(), *others):
            thread.start()

    def reopen(self) -> None:
        """Open every stream again, after the engine did not answer."""
        self._streams.close(idle_for=0.0)

    def close(self, timeout: float) -> None:
        """Read the rest of the ended containers' output; stop once none has written anything for `timeout` seconds."""
        self._closing.set()
        closed = time.monotonic()
        while unfinished := [task for task, thread in self._logs.items() if thread.is_alive()]:
            if min(time.monotonic() - closed, *map(self._streams.idle_seconds, unfinished)) > timeout:
                return
            self._logs[unfinished[0]].join(_JOIN_TIMEOUT)

    def _retry_until_closed(self, listen: Callable[[], None]) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(*_CLOSED):
                listen()
            self._closing.wait(_RETRY_INTERVAL)

    def _reopen_idle(self) -> None:
        while not self._closing.wait(_POLL_INTERVAL):
            self._streams.close(idle_for=_IDLE_TIMEOUT)

    def _events(self) -> None:
        filters = {"type": "container", "event": "die", "label": f"{labels.RUN}={self._run}"}
        events = self._engine.client.events(decode=True, filters=filters, since=self._since)
        self._streams.opened("", events)
        for event in events:
            self._streams.received("")
            if nanoseconds := event.get("timeNano"):
                self._since = "{}.{:09d}".format(*divmod(int(nanoseconds) + 1, 10**9))
            attributes = (event.get("Actor") or {}).get("Attributes") or {}
            task, code = attributes.get(labels.TASK), str(attributes.get("exitCode", ""))
            if task and code.isdecimal():
                self._inbox.put(ContainerEnded(task, int(code)))

    def _follow(self, task: str, container: str) -> None:
        after, wait = "", _RETRY_INTERVAL

        def opened(stream: Any) -> None:
            self._streams.opened(task, stream)

        while True:
            is_last_read = self._closing.is_set()
            wait = min(2 * wait, _IDLE_INTERVAL)
            with contextlib.suppress(*_CLOSED):
                for stamp, line in log_stream.follow(self._engine.client, container, task, after=after, opened=opened):
                    after, wait = stamp, _RETRY_INTERVAL
                    self._streams.received(task)
                    self._inbox.put(LineWritten(task, line))
            if is_last_read:
                return
            self._closing.wait(wait)
