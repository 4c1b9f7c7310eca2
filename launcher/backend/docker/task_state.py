"""One task in a container: what the engine says of it and what its own output tells, as one status. Does no I/O."""

import time
from dataclasses import dataclass, field
from typing import Any

from launcher import timestamps
from launcher.plan import role_rules
from launcher.runs.progress import Pace, number, whole
from launcher.runs.reasons import RESTRICTION_REMEDY, LastError, Start, meets_restriction, out_of_memory, said_with, waiting, was_killed
from launcher.runs.status import Restart, State, TaskStatus
from trainer.events import Event, parse
from trainer.exit_codes import SIGKILL, ExitCode, describe

_NO_SUCH_PROGRAM = 127  # the exit code of an engine's `init` that cannot start the program, as a shell's

# What the engine calls the states in which nothing of a container runs, nor will by itself.
OVER = frozenset({"exited", "dead"})


def is_final(code: int) -> bool:
    """Return whether a retry cannot help after the trainer gave up with this exit code."""
    return code not in {ExitCode.DONE, ExitCode.PEER_LOST, ExitCode.STOPPED}


@dataclass
class TaskView:
    """What is known of one task. `container` is the engine's state of it, empty before it was looked at.

    One without a trainer in it tells nothing of itself: what the engine counts is all that there is.
    """

    name: str
    address: str = ""
    has_trainer: bool = True
    limit: int | None = None  # of restarts, where that is known
    in_own_image: bool = False  # of the user's, hardened by us
    container: dict[str, Any] = field(default_factory=dict)
    restarts: list[Restart] = field(default_factory=list)
    failure: str = ""  # what the task itself said of why it gives up
    gave_up: int | None = None  # with which exit code
    last: LastError = field(default_factory=LastError)
    _killed: bool = False  # its process was, while it went on
    settled: tuple[State, str] | None = None  # how it ended for the run, where that is not what its exit code says
    _told: tuple[State, str] = (State.PENDING, "")
    _start: Start = field(default_factory=Start)
    _starts: int = 0
    _uncounted: int = 0  # restarts after a stop, and what the trainer itself does not count
    _recovered: int = 0  # restarts in place that count no more
    _counted: int = 0  # restarts in place, as the trainer that runs counts them
    _left: int | None = None  # restarts in place that it may still make, as it says
    _engine_restarts: int = 0  # as the engine counts them, since somebody else started the container
    _code: int | None = None
    _pace: Pace = field(default_factory=Pace)

    @property
    def phase(self) -> str:
        """What the engine calls the container's state: created, running, paused, restarting, exited, dead; gone without one."""
        return str(self.container.get("Status", "gone"))

    @property
    def code(self) -> int | None:
        """The exit code that the container has or had last, None while it never ended."""
        return int(self.container["ExitCode"]) if self.phase in {"restarting", *OVER} else self._code

    def look(self, state: dict[str, Any], restarts: int = 0) -> bool:
        """Take in the engine's `State` of the container and how often it restarted it; True when something changed."""
        changed = state != self.container
        if state.get("Status") in {"restarting", *OVER} and timestamps.seconds(state.get("FinishedAt")) is not None:
            self._code = int(state.get("ExitCode", 0))
        self.container = state
        if not self.has_trainer:
            for _ in range(restarts - self._engine_restarts):
                self._restarted(timestamps.seconds(state.get("StartedAt")) or 0.0)
            self._engine_restarts = restarts
        return changed

    @property
    def counted(self) -> int:
        """How many restarts count against the limit."""
        return len(self.restarts) - self._uncounted - self._recovered

    def _restarted(self, at: float) -> None:
        self._uncounted += self._code in {ExitCode.STOPPED, ExitCode.DONE}
        self.restarts.append(Restart(at, len(self.restarts) + 1, self._code, self.why(self._code)))

    def starts(self) -> None:
        """Note that its container is being started: what was last seen of it is of before."""
        self.container = {**self.container, "Status": "created"}

    def started_again(self) -> None:
        """Note that the engine has started its container, and counts its own restarts from none."""
        if not self.has_trainer:
            self._restarted(time.time())
            self._engine_restarts = 0

    @property
    def ran_for(self) -> float:
        """Seconds that the container ran the last time, 0 where it never ended."""
        began, ended = (timestamps.seconds(self.container.get(key)) for key in ("StartedAt", "FinishedAt"))
        return 0.0 if began is None or ended is None else max(0.0, ended - began)

    def ended_with(self, code: int) -> None:
        """Note the exit code of an attempt, which the engine tells once."""
        self._code = code

    def line(self, written: str) -> Event | None:
        """Take in one line of output; return the event in it, if it is one."""
        event = parse(written) if written.startswith('{"event":') else None
        if event is None:
            self.last.feed(written)
        return event

    def tell(self, event: Event, *, own: bool) -> None:
        """Take in one event about this task; `own` when it wrote it itself."""
        kind = event["event"]
        if kind == "progress":
            self._pace = Pace.of(event)
        if not own:
            return
        if self._start.waits(event):
            self._told = (State.PENDING, waiting(event))
        elif kind == "started":
            self._started(event)
        elif kind in {"ready", "restored", "progress"}:
            self._told = (State.RUNNING, "")
        elif kind == "restarting":
            cause = said_with(event, self.last)
            counted = whole(event, "restarts")
            self._uncounted += counted == self._counted
            self._counted, self._left = counted or 0, whole(event, "left")
            self.restarts.append(Restart(_time(event), len(self.restarts) + 1, whole(event, "exit_code"), cause))
            self._told = (State.RESTARTING, cause)
        elif kind == "recovered":
            self._recovered += self._counted
            self._counted, self._left = 0, whole(event, "left")
        elif kind == "failed":
            self.failure, self.gave_up = said_with(event, self.last), whole(event, "exit_code")
            self._killed = was_killed(event)

    def _started(self, event: Event) -> None:
        self._told = (State.RUNNING, "")
        self.last = LastError()  # of this attempt
        if whole(event, "attempt") == 1:
            if self._starts:
                self._restarted(_time(event))
            self._starts += 1
            self._counted, self._left = 0, None
        self.failure, self.gave_up, self._killed = "", None, False

    def why(self, code: int | None) -> str:
        """Say why an attempt ended: the task's own words, or the exit code in words and its last line."""
        if self.container.get("OOMKilled"):
            return "out of memory: killed at the container's limit"
        if self.failure:
            return self.failure
        if self.had_no_parent(code):
            return role_rules.NO_PYTHON
        if code is None:
            return "its container was started again"
        if code in {SIGKILL, ExitCode.STOPPED} or not self.last.line:
            return describe(code)
        return f"{describe(code)}: {self.last.line}"

    def had_no_parent(self, code: int | None) -> bool:
        """Return whether the container had nothing to start: the engine's own first process says so, of a parent that never said a word."""
        return self.has_trainer and code == _NO_SUCH_PROGRAM and not self._starts and not self.failure

    def _remedy(self, state: State) -> str:
        """Return what to do about it when it could not be started, or was killed, for memory as it seems."""
        if state is State.FAILED and self.had_no_parent(self.code):
            return role_rules.NO_PYTHON_REMEDY
        if state is State.FAILED and self.in_own_image and meets_restriction(self.why(self.code)):
            return RESTRICTION_REMEDY
        killed = self.container.get("OOMKilled") or self._killed or self.code == SIGKILL
        return out_of_memory(self.name, limited=True) if killed and state is State.FAILED else ""

    def state(self) -> tuple[State, str]:
        """Return the state and its reason."""
        if self.settled is not None:
            return self.settled
        phase, code = self.phase, self.code
        if phase == "paused":
            return State.RUNNING, "paused: `docker unpause` lets it go on"
        if phase == "running":
            return self._told if self.has_trainer else (State.RUNNING, "")
        if phase == "restarting":
            return State.RESTARTING, self.why(code)
        if phase in OVER:
            if code == ExitCode.DONE:
                return State.SUCCEEDED, ""
            return (State.STOPPED, "") if code == ExitCode.STOPPED else (State.FAILED, self.why(code))
        return State.PENDING, "" if phase == "created" else "its container is gone"

    def status(self) -> TaskStatus:
        """Return the task as others see it."""
        state, reason = self.state()
        over = self.phase in OVER
        return TaskStatus(
            name=self.name,
            state=state,
            reason=reason,
            remedy=self._remedy(state),
            address=self.address,
            restarts=tuple(self.restarts),
            restarts_left=self._left if self._left is not None or self.limit is None else max(0, self.limit - self.counted),
            exit_code=self.code if over else None,
            started=timestamps.seconds(self.container.get("StartedAt")),
            ended=timestamps.seconds(self.container.get("FinishedAt")) if over else None,
            **vars(self._pace),
        )


def _time(event: Event) -> float:
    return number(event, "time") or 0.0
