"""Notices a task that makes no progress, by what the training process says of it (`alive` of trainer/events.py); of a user's own program by its output."""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from trainer.event_loop import EventLoop, Timer
from trainer.output import STDOUT
from trainer.process_group import is_stopped
from trainer.stack_reading import Activity, activity, no_progress
from trainer.tf_config import split_address

if TYPE_CHECKING:
    from trainer.parent_job import ParentJob
    from trainer.peers import ConnectionProber
    from trainer.stacks import ProcessStacks, Stacks

MIN_LIMIT = 60.0  # seconds: the limit where none is set, unless steps are slow
_STEPS = 20  # or so many median steps, and at least three calls into TensorFlow
_FIRST = 1200.0  # seconds at least for the first of its kind, which traces and compiles
_MAX_CALLS = 100  # calls
_CHECK_INTERVAL = 5.0  # seconds between checks, or a fifth of the limit
_LONG = frozenset({"evaluating", "saving", "callbacks"})
_TIMED = frozenset({"starting", "training", "evaluating", "callbacks", "program"})
_WAITS = frozenset({"peers", "servers"})
_BUSY_AFTER = 30.0  # seconds
_MAX_ASKED = 3  # times before the first step
_ASK_AGAIN = 30.0  # seconds between two times that a process is asked by itself what it does
_PROBE_TIMEOUT = 5.0  # seconds


class StallWatch:
    """Watches one attempt of a task after the other; reports `stalled`, `resumed`, and `busy` where something takes long and goes on.

    `end(why)` is called where the user wants a stalled program ended: not where it only waits for another task, unless that is a server of its own.
    A user's program is not judged without a limit of the user's.
    """

    def __init__(
        self,
        job: ParentJob,
        report: Callable[..., None],
        loop: EventLoop,
        stacks: Stacks,
        prober: ConnectionProber,
        end: Callable[[str], None],
    ) -> None:
        self._job, self._report, self._loop, self._stacks, self._prober, self._end = job, report, loop, stacks, prober, end
        self._limit = job.stalls.timeout
        self._by_output = not job.built_in
        self._pid: int | None = None
        self._timer: Timer | None = None
        self._phase, self._step = "", None  # type: str, int | None
        self._checked = self._investigate_from = 0.0
        self._asked, self._doing = 0, Activity("unknown")
        self._last = self._since = self._stopped_at = self._busy_at = 0.0
        self._stalled = self._again = self._asking = False
        self._seen: dict[str, deque[float]] = {}  # phase -> seconds of its last calls, or of a step of them

    def begin(self, pid: int | None) -> None:
        """Watch another attempt."""
        self.cancel()
        if self._by_output and (self._limit is None or os.isatty(STDOUT)):  # what it writes to a terminal, this process does not see
            return
        self._pid = pid
        self._seen = {}
        self._step, self._stopped_at, self._investigate_from = None, 0.0, 0.0
        self._checked = time.monotonic()
        self._asked, self._doing = 0, Activity("unknown")
        self._progress("program" if self._by_output else "")
        self._timer = self._loop.call_later(self._interval(), self._check)

    def cancel(self) -> None:
        """Watch nothing until `begin`."""
        self._pid, self._stalled, self._again = None, False, False
        if self._timer is not None:
            self._timer.cancel()

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Take in an event of the training process; `alive` says what it does."""
        if self._by_output:
            self._progress("program")
        if event["event"] != "alive" or self._by_output:
            return
        phase, step, seconds, steps = (event.get(key) for key in ("phase", "step", "seconds", "steps"))
        if isinstance(step, int):
            self._step = step
        if isinstance(seconds, (int, float)) and isinstance(steps, int) and steps > 0:
            times = self._seen.setdefault(str(phase), deque(maxlen=_MAX_CALLS))
            times.append(max(seconds / steps, seconds / _STEPS * 3))
        self._progress(str(phase))

    def on_output(self) -> None:
        """Note that a program has written something."""
        if self._by_output:
            self._progress("program")

    def ask(self, then: Callable[[Activity], None]) -> None:
        """Call `then` with what the attempt does, where it still lives then; with the last answer where it was asked a few times."""
        pid = self._pid

        def read(found: list[ProcessStacks]) -> None:
            self._doing = self._activity(found)
            if self._pid == pid:
                then(self._doing)

        self._asked += 1
        if self._asked > _MAX_ASKED:
            then(self._doing)
        else:
            self._stacks.ask(read)

    def _progress(self, phase: str) -> None:
        now = time.monotonic()
        since, self._last = now - self._last, now
        if phase != self._phase:
            self._phase, self._since = phase, now
        if self._stalled:
            self._stalled = self._again = False
            self._emit("resumed", since)

    def limit(self) -> float:
        """Return for how many seconds there may be no progress now."""
        times = self._seen.get(self._phase)
        usual = list(times or ())[1:] or times  # the first compiles
        own = max(MIN_LIMIT, _STEPS * statistics.median(usual)) if usual else MIN_LIMIT
        limit = own if self._limit is None else self._limit
        return limit if times or self._phase == "program" else max(limit, _FIRST)

    def _interval(self) -> float:
        return min(_CHECK_INTERVAL, (self._limit or MIN_LIMIT) / 5)

    def _check(self) -> None:
        self._timer = self._loop.call_later(self._interval(), self._check)
        now = time.monotonic()
        checked, self._checked = self._checked, now
        if self._pid is None or self._asking:
            return
        if now - checked > 3 * self._interval() + 1:  # this process itself was stopped, or frozen with all others
            self._last = now
        self._report_busy(now)
        if not is_stopped(self._pid):
            self._last = now if self._stopped_at else self._last
            self._stopped_at = 0.0
        elif not self._stopped_at:
            self._stopped_at = now
        if self._stopped_at and now - self._stopped_at >= (self._limit or MIN_LIMIT):
            self._handle_stall(now - self._stopped_at, Activity("stopped"))
        elif self._phase in _TIMED and now - self._last >= self.limit() * (1 + self._stalled) and not (self._stopped_at or self._again):
            if now >= self._investigate_from:
                self._investigate_from = now + _ASK_AGAIN
                self._investigate()
        elif self._stalled and self._phase not in _TIMED and not self._stopped_at:
            self._progress(self._phase)  # a server that was stopped goes on

    def _report_busy(self, now: float) -> None:
        takes_long = self._phase in _LONG and now - max(self._since, self._busy_at) >= _BUSY_AFTER
        if takes_long and now - self._last < self.limit():
            self._busy_at = now
            self._emit("busy", now - self._since, phase=self._phase)

    def _investigate(self) -> None:
        """Ask the peers whether they are there, then the process what it does."""
        self._asking = True
        last, left = self._last, set(self._job.awaited)

        def answered(name: str, problem: str | None) -> None:
            left.discard(name)
            if problem is not None:
                self._asking = False  # a peer is away, and others see to that
            elif not left and self._asking:
                self._stacks.ask(lambda found: self._read(found, last))

        for name, address in self._job.awaited.items():
            self._prober.ask(address, partial(answered, name))
        if not self._job.awaited:
            self._stacks.ask(lambda found: self._read(found, last))

    def _read(self, found: list[ProcessStacks], last: float) -> None:
        doing = self._activity(found)
        if doing.kind == "peers" and self._job.watched_workers:
            threading.Thread(target=self._ask_servers, args=(last,), name="stall", daemon=True).start()
        else:
            self._judge(doing, last)

    def _activity(self, found: list[ProcessStacks]) -> Activity:
        ordered = sorted(found, key=lambda one: one.pid != self._pid)  # the process itself before those that it has started
        return next((activity(one.stacks) for one in ordered if one.stacks), Activity("silent" if found else "unknown"))

    def _ask_servers(self, last: float) -> None:
        silent = [name for name, address in self._job.awaited.items() if not _responds(address)]
        doing = Activity("servers", ", ".join(silent)) if silent else Activity("peers")
        self._loop.call_from_thread(partial(self._judge, doing, last))

    def _judge(self, doing: Activity, last: float) -> None:
        self._asking = False
        seconds = time.monotonic() - last
        if self._pid is not None and self._last == last and (doing.kind != "compiling" or seconds >= _FIRST):
            self._handle_stall(seconds, doing)

    def _handle_stall(self, seconds: float, doing: Activity) -> None:
        lasts = seconds >= 2 * self.limit()
        if not self._stalled or (lasts and not self._again):
            self._stalled, self._again = True, lasts
            self._emit("stalled", seconds, step=self._step, doing=doing.kind, place=doing.detail)
            waits = doing.kind in _WAITS and not (lasts and self._job.watched_workers)
            if self._job.stalls.on_stall != "tell" and not waits:
                self._end(no_progress(seconds, doing))

    def _emit(self, kind: str, seconds: float, **fields: Any) -> None:
        self._report(kind, seconds=round(seconds, 1), **fields)


def _responds(address: str) -> bool:
    """Return whether a server of gRPC takes a connection and sends what it begins each with; one that is stopped or frozen does not."""
    with contextlib.suppress(OSError, ValueError), socket.create_connection(split_address(address), timeout=_PROBE_TIMEOUT) as connection:
        return bool(connection.recv(1))
    return False
