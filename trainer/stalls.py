"""Detects a task without progress: by the events `heartbeat` of the training process (trainer/events.py), or by the output of a user's own program."""

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
from trainer.process_group import is_suspended
from trainer.stack_reading import Activity, no_progress_message, read_activity
from trainer.tf_config import split_address

if TYPE_CHECKING:
    from trainer.parent_config import ParentConfig
    from trainer.peers import ConnectionProber
    from trainer.stacks import ProcessStacks, Stacks

MIN_LIMIT = 60.0  # seconds: the default limit, unless steps are slow
_STEPS = 20  # with slow steps the limit is this many median steps, or three calls into TensorFlow if that is longer
_MIN_FIRST_LIMIT = 1200.0  # seconds: the least limit of a phase's first call, which traces and compiles
_MAX_CALLS = 100  # of a phase, whose times are stored
_CHECK_INTERVAL = 5.0  # seconds between checks at most, else a fifth of the limit
_BUSY_PHASES = frozenset({"evaluating", "saving", "callbacks"})
# Phases in which no progress is a stall.
_JUDGED_PHASES = frozenset({"starting", "training", "evaluating", "callbacks", "program"})
_WAITS = frozenset({"peers", "servers"})
_BUSY_AFTER = 30.0  # seconds
_MAX_ASKED = 3  # requests for the activity before the first step
_INVESTIGATION_INTERVAL = 30.0  # seconds between two investigations of a process
_PROBE_TIMEOUT = 5.0  # seconds


class StallDetector:
    """Watches one attempt of a task after the other; reports `stalled`, `resumed`, and `busy` if something takes long and continues.

    `end(cause)` is called if `on_stall` is not `tell`, unless the task only waits for other tasks; a chief that waits for its servers is
    ended after twice the limit. A user's program is only watched if the user has set a limit, and stdout is no terminal.
    """

    def __init__(
        self,
        config: ParentConfig,
        report: Callable[..., None],
        loop: EventLoop,
        stacks: Stacks,
        prober: ConnectionProber,
        end: Callable[[str], None],
    ) -> None:
        self._config, self._report, self._loop, self._stacks, self._prober, self._end = config, report, loop, stacks, prober, end
        self._limit = config.stalls.timeout
        self._is_user_program = not config.runs_built_in_trainer
        self._pid: int | None = None
        self._timer: Timer | None = None
        self._phase, self._step = "", None  # type: str, int | None
        self._checked = self._investigate_from = 0.0
        self._asked, self._activity = 0, Activity("unknown")
        self._last_progress = self._phase_began = self._suspended_at = self._busy_at = 0.0
        self._stalled = self._reported_again = self._investigating = False
        self._call_times: dict[str, deque[float]] = {}  # phase -> seconds a step of its last calls

    def begin(self, pid: int | None) -> None:
        """Watch another attempt."""
        self.cancel()
        if self._is_user_program and (self._limit is None or os.isatty(STDOUT)):  # this process does not see output to a terminal
            return
        self._pid = pid
        self._call_times = {}
        self._step, self._suspended_at, self._investigate_from = None, 0.0, 0.0
        self._checked = time.monotonic()
        self._asked, self._activity = 0, Activity("unknown")
        self._progress("program" if self._is_user_program else "")
        self._timer = self._loop.call_later(self._interval(), self._check)

    def cancel(self) -> None:
        """Watch nothing until `begin`."""
        self._pid, self._stalled, self._reported_again = None, False, False
        if self._timer is not None:
            self._timer.cancel()

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Process an event of the training process; `heartbeat` has its phase."""
        if self._is_user_program:
            self._progress("program")
        if event["event"] != "heartbeat" or self._is_user_program:
            return
        phase, step, seconds, steps = (event.get(key) for key in ("phase", "step", "seconds", "steps"))
        if isinstance(step, int):
            self._step = step
        if isinstance(seconds, (int, float)) and isinstance(steps, int) and steps > 0:
            times = self._call_times.setdefault(str(phase), deque(maxlen=_MAX_CALLS))
            times.append(max(seconds / steps, seconds / _STEPS * 3))
        self._progress(str(phase))

    def on_output(self) -> None:
        """Note that a program has written something."""
        if self._is_user_program:
            self._progress("program")

    def ask(self, then: Callable[[Activity], None]) -> None:
        """Call `then` with the attempt's activity, if it still lives then; after a few requests, with the last answer."""
        pid = self._pid

        def read(stacks: list[ProcessStacks]) -> None:
            self._activity = self._activity_of(stacks)
            if self._pid == pid:
                then(self._activity)

        self._asked += 1
        if self._asked > _MAX_ASKED:
            then(self._activity)
        else:
            self._stacks.ask(read)

    def _progress(self, phase: str) -> None:
        now = time.monotonic()
        since, self._last_progress = now - self._last_progress, now
        if phase != self._phase:
            self._phase, self._phase_began = phase, now
        if self._stalled:
            self._stalled = self._reported_again = False
            self._emit("resumed", since)

    def limit(self) -> float:
        """Return the current limit: the seconds without progress that count as a stall."""
        times = self._call_times.get(self._phase)
        typical = list(times or ())[1:] or times  # the first call compiles
        default = max(MIN_LIMIT, _STEPS * statistics.median(typical)) if typical else MIN_LIMIT
        limit = default if self._limit is None else self._limit
        return limit if times or self._phase == "program" else max(limit, _MIN_FIRST_LIMIT)

    def _interval(self) -> float:
        return min(_CHECK_INTERVAL, (self._limit or MIN_LIMIT) / 5)

    def _check(self) -> None:
        self._timer = self._loop.call_later(self._interval(), self._check)
        now = time.monotonic()
        checked, self._checked = self._checked, now
        if self._pid is None or self._investigating:
            return
        if now - checked > 3 * self._interval() + 1:  # this process itself was suspended or frozen
            self._last_progress = now
        self._report_busy(now)
        if not is_suspended(self._pid):
            self._last_progress = now if self._suspended_at else self._last_progress
            self._suspended_at = 0.0
        elif not self._suspended_at:
            self._suspended_at = now
        if self._suspended_at and now - self._suspended_at >= (self._limit or MIN_LIMIT):
            self._handle_stall(now - self._suspended_at, Activity("stopped"))
        elif (
            self._phase in _JUDGED_PHASES
            and now - self._last_progress >= self.limit() * (1 + self._stalled)
            and not (self._suspended_at or self._reported_again)
        ):
            if now >= self._investigate_from:
                self._investigate_from = now + _INVESTIGATION_INTERVAL
                self._investigate()
        elif self._stalled and self._phase not in _JUDGED_PHASES and not self._suspended_at:
            self._progress(self._phase)  # a suspended server has continued

    def _report_busy(self, now: float) -> None:
        takes_long = self._phase in _BUSY_PHASES and now - max(self._phase_began, self._busy_at) >= _BUSY_AFTER
        if takes_long and now - self._last_progress < self.limit():
            self._busy_at = now
            self._emit("busy", now - self._phase_began, phase=self._phase)

    def _investigate(self) -> None:
        """Probe the peers; if all answer, ask the process for its stacks."""
        self._investigating = True
        last, unanswered = self._last_progress, set(self._config.required_peers)

        def answered(name: str, problem: str | None) -> None:
            unanswered.discard(name)
            if problem is not None:
                self._investigating = False  # a peer is gone, which PeerWait and ReachabilityMonitor handle
            elif not unanswered and self._investigating:
                self._stacks.ask(lambda stacks: self._on_stacks(stacks, last))

        for name, address in self._config.required_peers.items():
            self._prober.ask(address, partial(answered, name))
        if not self._config.required_peers:
            self._stacks.ask(lambda stacks: self._on_stacks(stacks, last))

    def _on_stacks(self, stacks: list[ProcessStacks], last: float) -> None:
        activity = self._activity_of(stacks)
        if activity.kind == "peers" and self._config.is_chief_of_servers:
            threading.Thread(target=self._probe_servers, args=(last,), name="stall", daemon=True).start()
        else:
            self._judge(activity, last)

    def _activity_of(self, stacks: list[ProcessStacks]) -> Activity:
        ordered = sorted(stacks, key=lambda process: process.pid != self._pid)  # the process itself before those that it has started
        return next((read_activity(process.stacks) for process in ordered if process.stacks), Activity("silent" if stacks else "unknown"))

    def _probe_servers(self, last: float) -> None:
        unresponsive = [name for name, address in self._config.required_peers.items() if not _responds(address)]
        activity = Activity("servers", ", ".join(unresponsive)) if unresponsive else Activity("peers")
        self._loop.call_from_thread(partial(self._judge, activity, last))

    def _judge(self, activity: Activity, last: float) -> None:
        """Handle the stall that was investigated, unless there was progress since `last`."""
        self._investigating = False
        seconds = time.monotonic() - last
        if self._pid is not None and self._last_progress == last and (activity.kind != "compiling" or seconds >= _MIN_FIRST_LIMIT):
            self._handle_stall(seconds, activity)

    def _handle_stall(self, seconds: float, activity: Activity) -> None:
        lasts = seconds >= 2 * self.limit()
        if not self._stalled or (lasts and not self._reported_again):
            self._stalled, self._reported_again = True, lasts
            self._emit("stalled", seconds, step=self._step, doing=activity.kind, place=activity.detail)
            waits = activity.kind in _WAITS and not (lasts and self._config.is_chief_of_servers)
            if self._config.stalls.on_stall != "tell" and not waits:
                self._end(no_progress_message(seconds, activity))

    def _emit(self, kind: str, seconds: float, **fields: Any) -> None:
        self._report(kind, seconds=round(seconds, 1), **fields)


def _responds(address: str) -> bool:
    """Return whether a gRPC server accepts a connection and sends its first bytes; one that is suspended or frozen does not."""
    with contextlib.suppress(OSError, ValueError), socket.create_connection(split_address(address), timeout=_PROBE_TIMEOUT) as connection:
        return bool(connection.recv(1))
    return False
