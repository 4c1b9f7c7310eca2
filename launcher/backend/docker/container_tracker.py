"""One task in a container: what the engine says of it and what its own output tells, as one status. Does no I/O."""

import dataclasses
import time
from dataclasses import dataclass, field
from typing import Any

from launcher import timestamps
from launcher.plan import role_rules
from launcher.runs.progress import integer, number
from launcher.runs.reasons import RESTRICTION_REMEDY, meets_restriction
from launcher.runs.status import State, TaskStatus
from launcher.runs.task_tracker import TaskTracker
from trainer.events import Event, parse
from trainer.exit_codes import ExitCode

_NO_SUCH_PROGRAM = 127  # the exit code of an engine's `init` that cannot start the program, as a shell's

# The engine's states in which nothing of a container runs. The engine may be about to start it again (stop.py).
EXITED = frozenset({"exited", "dead"})


def is_final(code: int) -> bool:
    """Return whether a retry cannot help after the trainer has failed with this exit code, as it says."""
    return code not in {ExitCode.DONE, ExitCode.PEER_LOST, ExitCode.STOPPED}


@dataclass
class ContainerTracker(TaskTracker):
    """The state of one task. `container` is the engine's state of it, empty before the first update.

    One without a trainer in it tells nothing of itself: what the engine counts is all that there is.
    """

    has_trainer: bool = True
    in_own_image: bool = False  # of the user's, hardened by us
    container: dict[str, Any] = field(default_factory=dict)
    _parents: int = 0  # that have started
    _announced: bool = False  # the restart that its next parent tells of is recorded already
    _pending: str | None = None  # why it is to be started again, until it is
    _engine_restarts: int = 0  # as the engine counts them, since somebody else started the container

    @property
    def phase(self) -> str:
        """The container's state in the engine's word: created, running, paused, restarting, exited, dead; gone without one."""
        return str(self.container.get("Status", "gone"))

    @property
    def ran_for(self) -> float:
        """Seconds that the container ran the last time, 0 where it never ended."""
        began, ended = (timestamps.parse_rfc3339(self.container.get(key)) for key in ("StartedAt", "FinishedAt"))
        return 0.0 if began is None or ended is None else max(0.0, ended - began)

    def update(self, state: dict[str, Any], restarts: int = 0) -> bool:
        """Take in the engine's `State` of the container and how often it restarted it; True when something changed."""
        changed = state != self.container
        self.container = state
        if self.phase in {"restarting", *EXITED}:
            self.code = int(state.get("ExitCode", 0))
        if not self.has_trainer:
            for _ in range(restarts - self._engine_restarts):
                self._container_restarted(timestamps.parse_rfc3339(state.get("StartedAt")) or 0.0)
            self._engine_restarts = restarts
        self.killed = self.killed or bool(state.get("OOMKilled"))
        return changed

    def mark_starting(self) -> None:
        """Note that its container is being started: the phase seen before this start counts no more."""
        self.container, self._pending = {**self.container, "Status": "created"}, None

    def mark_restarted(self) -> None:
        """Note that the engine has started its container, and counts its own restarts from none."""
        self._engine_restarts = 0

    def mark_restarting(self, cause: str, *, counts: bool) -> None:
        """Note that its container is started again after a while."""
        super().mark_restarting(cause, counts=counts)
        self._announced, self._pending = True, cause

    def apply(self, event: Event, *, own: bool) -> bool:
        """Take in one event about this task; a parent's first attempt tells that its container was started."""
        if own and event["event"] == "started" and integer(event, "attempt") == 1:
            if self._parents and not self._announced:
                self._container_restarted(number(event, "time") or time.time())
            self._parents, self._announced = self._parents + 1, False
        return super().apply(event, own=own)

    def line(self, written: str) -> Event | None:
        """Take in one line of output; return the event in it, if it is one."""
        event = parse(written) if written.startswith('{"event":') else None
        if event is None:
            self.last.feed(written)
        return event

    def exit_reason(self, code: int | None) -> str:
        """Say why an attempt ended: with the engine's own words where it has some."""
        if self.container.get("OOMKilled"):
            return "out of memory: killed at the container's limit"
        return role_rules.NO_PYTHON if self.parent_never_started(code) else super().exit_reason(code)

    def parent_never_started(self, code: int | None) -> bool:
        """Return whether the container had nothing to start: the engine's own first process says so, of a parent that never said a word."""
        return self.has_trainer and code == _NO_SUCH_PROGRAM and not self._parents and not self.failure

    def remedy(self, state: State) -> str:
        """Return what to do about it when it could not be started, or was killed, for memory as it seems."""
        if state is State.FAILED and self.parent_never_started(self.code):
            return role_rules.NO_PYTHON_REMEDY
        if state is State.FAILED and self.in_own_image and meets_restriction(self.exit_reason(self.code)):
            return RESTRICTION_REMEDY
        return super().remedy(state)

    def state(self) -> tuple[State, str]:
        """Return the state and its reason: where its container does not run, they are what the engine says."""
        phase, code = self.phase, self.code
        if self.outcome is not None:
            return self.outcome
        if self._pending is not None:
            return State.RESTARTING, self._pending
        if phase == "paused":
            return State.RUNNING, "paused: `docker unpause` lets it go on"
        if phase == "running":
            return super().state() if self.has_trainer else (State.RUNNING, "")
        if phase == "restarting":
            return State.RESTARTING, self.exit_reason(code)
        if phase in EXITED and code == ExitCode.DONE:
            return State.SUCCEEDED, ""
        if phase in EXITED:
            return (State.STOPPED, "") if code == ExitCode.STOPPED else (State.FAILED, self.exit_reason(code))
        return State.PENDING, "" if phase == "created" else "its container is gone"

    def status(self) -> TaskStatus:
        """Return the task as others see it, with its container's times."""
        began, ended = (timestamps.parse_rfc3339(self.container.get(key)) for key in ("StartedAt", "FinishedAt"))
        over = self.phase in EXITED
        return dataclasses.replace(super().status(), exit_code=self.code if over else None, started=began, ended=ended if over else None)

    def _container_restarted(self, at: float) -> None:
        self._restarted(at, self.exit_reason(self.code), counts=self.code not in {ExitCode.STOPPED, ExitCode.DONE})
        self.killed = False
