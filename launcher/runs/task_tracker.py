"""Turns a task's events and exits into its recorded state, on every backend: the trainer's event lines, restarts, causes. Does no I/O."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from launcher.runs.progress import TaskProgress, integer, number
from launcher.runs.reasons import LastError, StartPhase, cause_with_output, out_of_memory, waiting_reason, was_killed
from launcher.runs.stalled_tasks import Stall
from launcher.runs.status import Restart, State, TaskStatus
from trainer.events import Event
from trainer.exit_codes import SIGKILL, ExitCode, describe

_FROM_OUTSIDE = frozenset({SIGKILL, ExitCode.STOPPED})


@dataclass
class TaskTracker:
    """One task. A backend that sees more of it than events and exits, such as a container's state, derives from this."""

    name: str
    address: str = ""
    limit: int | None = None  # of restarts that count, where that is known
    limited_memory: bool = True  # its role's `memory` is its limit
    from_outside: Mapping[int, str] = field(default_factory=dict)  # exit code -> who or what sent the signal, where that can be told
    restarts: list[Restart] = field(default_factory=list)
    reported: tuple[State, str] | None = None  # its state and the reason, by its events
    outcome: tuple[State, str] | None = None  # how it ended for the run
    done: bool = False  # it said last that its work is complete
    failure: str = ""  # its own words on why it ended
    killed: bool = False  # its training process was killed, as its parent says
    code: int | None = None  # exit code of the last attempt
    pid: int | None = None  # of its process, where that is on this machine
    started: float | None = None
    ended: float | None = None
    last: LastError = field(default_factory=LastError)
    progress: TaskProgress = field(default_factory=TaskProgress)
    stall: Stall = field(default_factory=Stall)
    _start: StartPhase = field(default_factory=StartPhase)
    _left: int | None = None  # restarts in place that its parent may still make
    _used_before: int = 0  # restarts that count, up to the present process
    _in_place: int = 0  # those of the present process, which starts its child again by itself

    @property
    def restarts_used(self) -> int:
        """How many restarts count against the limit."""
        return self._used_before + self._in_place

    @property
    def restarts_exhausted(self) -> bool:
        """Whether no restart that counts is left."""
        return self.limit is not None and self.restarts_used >= self.limit

    @property
    def restarts_left(self) -> int | None:
        """How many restarts that count are left, of the task's and of its present process's; None where neither is known."""
        own = None if self.limit is None else max(0, self.limit - self.restarts_used)
        return min((left for left in (own, self._left) if left is not None), default=None)

    def mark_started(self) -> None:
        """Note that a process of it has been started."""
        self.reported, self.outcome = (State.RUNNING, ""), None
        self.code = self.ended = None
        self._forget_failure()

    def mark_restarting(self, cause: str, *, counts: bool) -> None:
        """Note that it is started again after a while."""
        self._restarted(time.time(), cause, counts=counts)
        self.reported, self.outcome = (State.RESTARTING, cause), None

    def apply(self, event: Event, *, own: bool) -> bool:
        """Take in one event about this task; `own` when it wrote it itself. True when its state changed."""
        kind, before = event["event"], self.reported
        self.stall.apply(event)
        if kind == "progress":
            self.progress = TaskProgress.of(event)
        if not own:
            return False
        self.done = kind == "done"
        if kind == "started":
            if integer(event, "attempt") == 1:
                self._left = None
            self._forget_failure()
        if self._start.is_waiting(event):
            self.reported = (State.PENDING, waiting_reason(event))
        elif kind in {"started", "ready", "restored", "progress"}:
            self.reported = (State.RUNNING, "")
        elif kind == "restarting":
            self._restarts_in_place(event)
        elif kind == "recovered":
            self._in_place, self._left = integer(event, "restarts") or 0, integer(event, "left")
        elif kind == "failed":
            self.failure, self.killed = cause_with_output(event, self.last), was_killed(event)
        return self.reported != before or kind in {"restarting", "recovered", "stalled", "resumed"}

    def state(self) -> tuple[State, str]:
        """Return the state and its reason."""
        return self.outcome or self.reported or (State.PENDING, "")

    def exit_reason(self, code: int | None) -> str:
        """Say why an attempt ended: the task's own words, or the exit code in words and its last line."""
        if self.failure:
            return self.failure
        if code is None:
            return "its container was started again"
        # A process that was killed from outside had no say: its last line is about something else.
        if code in _FROM_OUTSIDE or not self.last.line:
            return self.from_outside.get(code) or describe(code)
        return f"{describe(code)}: {self.last.line}"

    def remedy(self, state: State) -> str:
        """Return what to do about it in that state, where that is known."""
        was_killed = self.killed or self.code == SIGKILL
        return out_of_memory(self.name, limited=self.limited_memory) if was_killed and state is State.FAILED else ""

    def status(self) -> TaskStatus:
        """Return the task as others see it."""
        state, reason = self.state()
        made = TaskStatus(
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
        return self.stall.added_to(made)

    def _restarted(self, at: float, cause: str, *, counts: bool) -> None:
        """Note that its process, or its container, was replaced: the count of restarts that this one kept ends with it."""
        self.restarts.append(Restart(at, len(self.restarts) + 1, self.code, cause))
        self._used_before, self._in_place = self.restarts_used + counts, 0

    def _restarts_in_place(self, event: Event) -> None:
        cause = cause_with_output(event, self.last)
        self.restarts.append(Restart(number(event, "time") or time.time(), len(self.restarts) + 1, integer(event, "exit_code"), cause))
        self._in_place, self._left = integer(event, "restarts") or self._in_place, integer(event, "left")
        self.reported = (State.RESTARTING, cause)

    def _forget_failure(self) -> None:
        self.failure, self.killed, self.last = "", False, LastError()
