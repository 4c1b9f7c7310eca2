"""The output of every task and the engine's events, read by threads and put in one queue."""

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

_RETRY_INTERVAL = 0.3  # seconds before an engine, or a container that ended, is asked again
_IDLE_INTERVAL = 2.0  # the same where nothing came the last times: the engine reads the whole log to find that
# An answer that brings nothing for so long is asked for again: the way to an engine elsewhere can be lost without a word, and
# the client waits forever then.
_SILENT = 30.0
_POLL_INTERVAL = 2.0
_JOIN_TIMEOUT = 0.1
# Errors of reading when the answer is closed meanwhile, besides the client's: the connection is taken apart under it.
_CLOSED = (*ERRORS, ValueError, AttributeError)


@dataclass(frozen=True)
class LineWritten:
    """A task wrote a line."""

    task: str
    line: LogLine


@dataclass(frozen=True)
class ContainerEnded:
    """A task's container ended, or is started again; its exit code."""

    task: str
    code: int


ContainerEvent = LineWritten | ContainerEnded
Inbox = queue.SimpleQueue[ContainerEvent]


class _Answers:
    """The answers of the engine that are being read, by their readers, and when each last brought something."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, tuple[Any, float]] = {}

    def opened(self, reader: str, answer: Any) -> None:
        """Note an answer that is about to be read."""
        with self._lock:
            self._open[reader] = (answer, time.monotonic())

    def received(self, reader: str) -> None:
        """Note that it brought something."""
        with self._lock:
            if reader in self._open:
                self._open[reader] = (self._open[reader][0], time.monotonic())

    def silence(self, reader: str) -> float:
        """Return for how many seconds one has brought nothing, infinity where none is open."""
        with self._lock:
            return time.monotonic() - self._open[reader][1] if reader in self._open else math.inf

    def close(self, *, silent_for: float) -> None:
        """Close those that have brought nothing for so many seconds: their readers ask again."""
        before = time.monotonic() - silent_for
        with self._lock:
            silent = {reader: answer for reader, (answer, last) in self._open.items() if last <= before}
            for reader in silent:
                del self._open[reader]
        for answer in silent.values():
            with contextlib.suppress(*_CLOSED):  # over ssh it cannot be closed, and ssh itself notices
                answer.close()


class EngineWatch:
    """Follows the containers of a run until it is closed, through restarts of theirs and of the engine."""

    def __init__(self, engine: Engine, run: str, containers: dict[str, str], inbox: Inbox) -> None:
        self._engine, self._run, self._inbox = engine, run, inbox
        self._closing = threading.Event()
        self._answers = _Answers()
        self._since: Any = None  # which events are known: seconds, and as the engine takes them nine digits of a fraction
        self._logs = {
            task: threading.Thread(target=self._follow, args=(task, container), name=f"log of {task}", daemon=True)
            for task, container in containers.items()
        }
        others = [
            threading.Thread(target=self._retry_until_closed, args=(it,), name=it.__name__, daemon=True)
            for it in (self._events, self._reopen_silent)
        ]
        for thread in (*self._logs.values(), *others):
            thread.start()

    def reopen(self) -> None:
        """Ask for all of it again: the engine was away."""
        self._answers.close(silent_for=0.0)

    def close(self, within: float) -> None:
        """Read what ended containers still have to say, and stop where none has said anything for `within` seconds."""
        self._closing.set()
        closed = time.monotonic()
        while left := [task for task, thread in self._logs.items() if thread.is_alive()]:
            if min(time.monotonic() - closed, *map(self._answers.silence, left)) > within:
                return
            self._logs[left[0]].join(_JOIN_TIMEOUT)

    def _retry_until_closed(self, listen: Callable[[], None]) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(*_CLOSED):
                listen()
            self._closing.wait(_RETRY_INTERVAL)

    def _reopen_silent(self) -> None:
        while not self._closing.wait(_POLL_INTERVAL):
            self._answers.close(silent_for=_SILENT)

    def _events(self) -> None:
        wanted = {"type": "container", "event": "die", "label": f"{labels.RUN}={self._run}"}
        events = self._engine.client.events(decode=True, filters=wanted, since=self._since)
        self._answers.opened("", events)
        for event in events:
            self._answers.received("")
            if nanoseconds := event.get("timeNano"):
                self._since = "{}.{:09d}".format(*divmod(int(nanoseconds) + 1, 10**9))
            attributes = (event.get("Actor") or {}).get("Attributes") or {}
            task, code = attributes.get(labels.TASK), str(attributes.get("exitCode", ""))
            if task and code.isdecimal():
                self._inbox.put(ContainerEnded(task, int(code)))

    def _follow(self, task: str, container: str) -> None:
        after, wait = "", _RETRY_INTERVAL

        def opened(answer: Any) -> None:
            self._answers.opened(task, answer)

        while True:
            last = self._closing.is_set()
            wait = min(2 * wait, _IDLE_INTERVAL)
            with contextlib.suppress(*_CLOSED):
                for stamp, line in log_stream.follow(self._engine.client, container, task, after=after, opened=opened):
                    after, wait = stamp, _RETRY_INTERVAL
                    self._answers.received(task)
                    self._inbox.put(LineWritten(task, line))
            if last:
                return
            self._closing.wait(wait)
