"""What a keeper hears: lines of every task and the engine's events, read by threads and put in one queue."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from launcher.backend.docker import output
from launcher.backend.docker.engine import ERRORS, Engine
from launcher.backend.model import LogLine
from launcher.render import labels

_AGAIN = 0.3  # seconds before an engine, or a container that ended, is asked again
_SELDOM = 2.0  # the same where nothing came the last times: the engine reads the whole log to find that


@dataclass(frozen=True)
class Wrote:
    """A task wrote a line."""

    task: str
    line: LogLine


@dataclass(frozen=True)
class Ended:
    """A task's container ended, or is started again; its exit code."""

    task: str
    code: int


@dataclass(frozen=True)
class Asked:
    """Somebody wants the run to stop: by a signal's number, or because the launcher is gone (None)."""

    signal: int | None


Heard = Wrote | Ended | Asked
Inbox = queue.SimpleQueue[Heard]


class Watch:
    """Follows the containers of a run until it is closed, through restarts of theirs and of the engine."""

    def __init__(self, engine: Engine, run: str, containers: dict[str, str], inbox: Inbox) -> None:
        self._engine, self._run, self._inbox = engine, run, inbox
        self._closing = threading.Event()
        self._threads = [threading.Thread(target=self._again, args=(self._events,), name="events", daemon=True)]
        for task, container in containers.items():
            self._threads.append(threading.Thread(target=self._follow, args=(task, container), name=f"log of {task}", daemon=True))
        for thread in self._threads:
            thread.start()

    def close(self, within: float) -> None:
        """Read what ended containers still have to say, for up to `within` seconds, and stop."""
        self._closing.set()
        deadline = time.monotonic() + within
        for thread in self._threads[1:]:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _again(self, listen: Callable[[], None]) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(*ERRORS):
                listen()
            self._closing.wait(_AGAIN)

    def _events(self) -> None:
        wanted = {"type": "container", "event": "die", "label": f"{labels.RUN}={self._run}"}
        for event in self._engine.client.events(decode=True, filters=wanted):
            attributes = (event.get("Actor") or {}).get("Attributes") or {}
            task, code = attributes.get(labels.TASK), str(attributes.get("exitCode", ""))
            if task and code.isdecimal():
                self._inbox.put(Ended(task, int(code)))

    def _follow(self, task: str, container: str) -> None:
        after, wait = "", _AGAIN
        while True:
            last = self._closing.is_set()
            wait = min(2 * wait, _SELDOM)
            with contextlib.suppress(*ERRORS):
                for stamp, line in output.follow(self._engine.client, container, task, after=after):
                    after, wait = stamp, _AGAIN
                    self._inbox.put(Wrote(task, line))
            if last:
                return
            self._closing.wait(wait)
