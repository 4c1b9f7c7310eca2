"""Turns a task's events and, under a supervisor, its exits into its recorded state: the trainer's event lines, restarts, causes. Does no I/O."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from launcher.runs.progress import TaskProgress, integer, number
from launcher.runs.reasons import LastError, StartPhase, cause_with_output, out_of_memory_remedy, reports_kill, waiting_reason
from launcher.runs.stalled_tasks import Stall
from launcher.runs.status import EndedAttempt, State, TaskStatus
from trainer.events import Event
from trainer.exit_codes import SIGKILL_EXIT_CODE, ExitCode, describe

_MAX_REMEMBERED_RESTARTS = 500  # the number of restarts with `restart: always` has no limit, and each is written to the state file
_SIGNAL_CODES = frozenset({SIGKILL_EXIT_CODE, ExitCode.STOPPED})


@dataclass
class TaskTracker:
    """The state of one task. A backend that knows more than events and exits, such as a container's state, has a subclass."""

    name: str
    address: str = ""
    max_restarts: int | None = None  # the limit of restarts that count; None if it is not known
    limited_memory: bool = True  # its role's `memory` limits it
    # Exit code after a signal -> a more specific reason that the backend knows.
    signal_reasons: Mapping[int, str] = field(default_factory=dict)
    restarts: list[EndedAttempt] = field(default_factory=list)  # the newest
    reported: tuple[State, str] | None = None  # its state and the reason, by its events and the supervisor's starts
    outcome: tuple[State, str] | None = None  # its final state in the run, and the reason
    done: bool = False  # its last event says that its work is complete
    failure: str = ""  # the reason of its failure, by its own events
    killed: bool = False  # its training process was killed, by its parent's event
    code: int | None = None  # exit code of the last attempt
    pid: int | None = None  # of its process, if that is on this machine
    started: float | None = None
    ended: float | None = None
    last_error: LastError = field(default_factory=LastError)
    progress: TaskProgress = field(default_factory=TaskProgress)
    stall: Stall = field(default_factory=Stall)
    _start: StartPhase = field(default_factory=StartPhase)
    _restarts_in_place_left: int | None = None  # restarts in place that its parent may still make
    _used_before: int = 0  # restarts that count, before the current process
    _restarts_in_place: int = 0  # restarts in place that count, of the current process

    @property
    def attempt(self) -> int:
        """The number of the current attempt, from 1 on."""
        return self.restarts[-1].attempt + 1 if self.restarts else 1

    @property
    def restarts_used(self) -> int:
        """How many restarts count against the limit."""
        return self._used_before + self._restarts_in_place

    @property
    def restarts_exhausted(self) -> bool:
        """Whether no restart that counts is left."""
        return self.max_restarts is not None and self.restarts_used >= self.max_restarts

    @property
    def restarts_left(self) -> int | None:
        """How many restarts that count are left: the smaller of the supervisor's count and the parent's; None if neither is known."""
        by_limit = None if self.max_restarts is None else max(0, self.max_restarts - self.restarts_used)
        return min((left for left in (by_limit, self._restarts_in_place_left) if left is not None), default=None)

    def mark_started(self) -> None:
        """Note that a process of the task was started."""
        self.reported, self.outcome = (State.RUNNING, ""), None
        self.code = self.ended = None
        self._forget_failure()

    def mark_restarting(self, cause: str, *, counts: bool) -> None:
        """Note that the task will be started again after the back-off."""
        self._apply_restart(time.time(), cause, counts=counts)
        self.reported, self.outcome = (State.RESTARTING, cause), None

    def apply(self, event: Event, *, self_reported: bool) -> bool:
        """Apply one event about this task; `self_reported`: the task itself wrote it. Return whether the state changed."""
        kind, before = event["event"], self.reported
        self.stall.apply(event)
        if kind == "progress":
            self.progress = TaskProgress.from_event(event)
        if not self_reported:
            return False
        self.done = kind == "done"
        if kind == "started":
            if integer(event, "attempt") == 1:
                self._restarts_in_place_left = None
            self._forget_failure()
        if self._start.apply(event):
            self.reported = (State.PENDING, waiting_reason(event))
        elif kind in {"started", "ready", "restored", "progress"}:
            self.reported = (State.RUNNING, "")
        elif kind == "restarting":
            self._apply_restart_in_place(event)
        elif kind == "recovered":
            self._restarts_in_place, self._restarts_in_place_left = integer(event, "restarts") or 0, integer(event, "left")
        elif kind == "failed":
            self.failure, self.killed = cause_with_output(event, self.last_error), reports_kill(event)
        return self.reported != before or kind in {"restarting", "recovered", "stalled", "resumed"}

    def state(self) -> tuple[State, str]:
        """Return the state and its reason."""
        return self.outcome or self.reported or (State.PENDING, "")

    def exit_reason(self, code: int | None) -> str:
        """Return why an attempt ended: the task's own reason, or the meaning of the exit code and the last line of output."""
        if self.failure:
            return self.failure
        if code is None:
            return "its container was started again"
        # A process that was killed could not write its reason: its last line is about something else.
        if code in _SIGNAL_CODES or not self.last_error.line:
            return self.signal_reasons.get(code) or describe(code)
        return f"{describe(code)}: {self.last_error.line}"

    def remedy(self, state: State) -> str:
        """Return the remedy for the task in that state; empty if none is known."""
        killed = self.killed or self.code == SIGKILL_EXIT_CODE
        return out_of_memory_remedy(self.name, limited=self.limited_memory) if killed and state is State.FAILED else ""

    def status(self) -> TaskStatus:
        """Return the task's status."""
        state, reason = self.state()
        status = TaskStatus(
            name=self.name,
            state=state,
            reason=reason,
            remedy=self.remedy(state),
            address=self.address,
            pid=self.pid,
            restarts=tuple(self.restarts),
            restarts_left=self.restarts_left,
            exit_code=self.code,
            started=self.started,
            ended=self.ended,
            **vars(self.progress),
        )
        return self.stall.apply_to(status)

    def _apply_restart(self, at: float, cause: str, *, counts: bool) -> None:
        """Record that its process or container was replaced, and reset the count of restarts in place."""
        self._add_restart(at, self.code, cause)
        self._used_before, self._restarts_in_place = self.restarts_used + counts, 0

    def _add_restart(self, at: float, exit_code: int | None, cause: str) -> None:
        self.restarts.append(EndedAttempt(at, self.attempt, exit_code, cause))
        del self.restarts[:-_MAX_REMEMBERED_RESTARTS]

    def _apply_restart_in_place(self, event: Event) -> None:
        cause = cause_with_output(event, self.last_error)
        self._add_restart(number(event, "time") or time.time(), integer(event, "exit_code"), cause)
        self._restarts_in_place, self._restarts_in_place_left = (
            integer(event, "restarts") or self._restarts_in_place,
            integer(event, "left"),
        )
        self.reported = (State.RESTARTING, cause)

    def _forget_failure(self) -> None:
        self.failure, self.killed, self.last_error = "", False, LastError()
