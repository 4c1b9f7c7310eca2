"""The state of one task in a container, from the engine's view of the container and the task's own output. Does no I/O."""

import dataclasses
import time
from dataclasses import dataclass, field
from typing import Any

from launcher import timestamps
from launcher.plan import role_rules
from launcher.runs.progress import integer, number
from launcher.runs.reasons import RESTRICTION_REMEDY, blocked_by_hardening
from launcher.runs.status import State, TaskStatus
from launcher.runs.task_tracker import TaskTracker
from trainer.events import Event, parse
from trainer.exit_codes import ExitCode

_COMMAND_NOT_FOUND = 127  # the exit code of the engine's `init` if it cannot start the program, the same as a shell's

# The engine's states of a container that does not run. The engine may be about to start it again (stop.py).
EXITED = frozenset({"exited", "dead"})
# Those of a container that runs, or is about to run again.
RUNNING = frozenset({"running", "paused", "restarting"})


@dataclass
class ContainerTracker(TaskTracker):
    """The state of one task. `engine_state` is the container's `State` as the engine reports it, empty before the first update.

    A container without a trainer writes no events: its restarts are known only from the engine's count.
    """

    has_parent: bool = True
    hardened_user_image: bool = False  # the image is the user's own, and the container is hardened by the launcher
    engine_state: dict[str, Any] = field(default_factory=dict)
    _parent_starts: int = 0  # how many trainer's parents have reported their start
    _restart_recorded: bool = False  # the next `started` event belongs to a restart that is already recorded
    _restart_cause: str | None = None  # why it is to be started again; None once it is
    _engine_restarts: int = 0  # the engine's count, since the container was last started by a call

    @property
    def engine_status(self) -> str:
        """The engine's status of the container: created, running, paused, restarting, exited or dead; `gone` without a container."""
        return str(self.engine_state.get("Status", "gone"))

    @property
    def _times(self) -> tuple[float | None, float | None]:
        """The times of the container's last start and end."""
        began, ended = (timestamps.parse_rfc3339(self.engine_state.get(key)) for key in ("StartedAt", "FinishedAt"))
        return began, ended

    @property
    def ran_for(self) -> float:
        """Seconds that the container's last run took; 0 if it never ended."""
        began, ended = self._times
        return 0.0 if began is None or ended is None else max(0.0, ended - began)

    def update(self, state: dict[str, Any], restarts: int = 0) -> bool:
        """Update from the engine's `State` of the container and its count of restarts; return whether the state changed."""
        changed = state != self.engine_state
        self.engine_state = state
        if self.engine_status in {"restarting", *EXITED}:
            self.code = int(state.get("ExitCode", 0))
        if not self.has_parent:
            for _ in range(restarts - self._engine_restarts):
                self._container_restarted(timestamps.parse_rfc3339(state.get("StartedAt")) or 0.0)
            self._engine_restarts = restarts
        self.killed = self.killed or bool(state.get("OOMKilled"))
        return changed

    def mark_starting(self) -> None:
        """Note that its container is being started: the last status is outdated."""
        self.engine_state, self._restart_cause = {**self.engine_state, "Status": "created"}, None

    def mark_restarted(self) -> None:
        """Note that the engine has started its container by a call, and counts its own restarts from zero again."""
        self._engine_restarts = 0

    def mark_restarting(self, cause: str, *, counts: bool) -> None:
        """Note that its container will be started again after the back-off."""
        super().mark_restarting(cause, counts=counts)
        self._restart_recorded, self._restart_cause = True, cause

    def apply(self, event: Event, *, self_reported: bool) -> bool:
        """Apply one event about this task; a parent's first attempt means that its container was started."""
        if self_reported and event["event"] == "started" and integer(event, "attempt") == 1:
            if self._parent_starts and not self._restart_recorded:
                self._container_restarted(number(event, "time") or time.time())
            self._parent_starts, self._restart_recorded = self._parent_starts + 1, False
        return super().apply(event, self_reported=self_reported)

    def feed(self, line: str) -> Event | None:
        """Process one line of output; return its event, if it is one."""
        event = parse(line)
        if event is None:
            self.last_error.feed(line)
        return event

    def exit_reason(self, code: int | None) -> str:
        """Return why an attempt ended; the engine's own reason comes first."""
        if self.engine_state.get("OOMKilled"):
            return "out of memory: killed at the container's limit"
        return role_rules.NO_PYTHON if self.parent_never_started(code) else super().exit_reason(code)

    def parent_never_started(self, code: int | None) -> bool:
        """Return whether the image lacks the program of the trainer's parent: `init` exited with 127, and no parent has written an event."""
        return self.has_parent and code == _COMMAND_NOT_FOUND and not self._parent_starts and not self.failure

    def remedy(self, state: State) -> str:
        """Return the remedy for a task that could not be started, was blocked by the hardening of its container, or was killed, probably out of memory."""
        if state is State.FAILED and self.parent_never_started(self.code):
            return role_rules.NO_PYTHON_REMEDY
        if state is State.FAILED and self.hardened_user_image and blocked_by_hardening(self.exit_reason(self.code)):
            return RESTRICTION_REMEDY
        return super().remedy(state)

    def state(self) -> tuple[State, str]:
        """Return the state and its reason: the engine's, unless the container runs a trainer or the outcome is known."""
        engine_status, code = self.engine_status, self.code
        if self.outcome is not None:
            return self.outcome
        if self._restart_cause is not None:
            return State.RESTARTING, self._restart_cause
        if engine_status == "paused":
            return State.RUNNING, "paused: `docker unpause` resumes it"
        if engine_status == "running":
            return super().state() if self.has_parent else (State.RUNNING, "")
        if engine_status == "restarting":
            return State.RESTARTING, self.exit_reason(code)
        if engine_status in EXITED and code == ExitCode.DONE:
            return State.SUCCEEDED, ""
        if engine_status in EXITED:
            return (State.STOPPED, "") if code == ExitCode.STOPPED else (State.FAILED, self.exit_reason(code))
        return State.PENDING, "" if engine_status == "created" else "its container is gone"

    def status(self) -> TaskStatus:
        """Return the task's status, with its container's times."""
        began, ended = self._times
        exited = self.engine_status in EXITED
        return dataclasses.replace(
            super().status(), exit_code=self.code if exited else None, started=began, ended=ended if exited else None
        )

    def _container_restarted(self, at: float) -> None:
        self._apply_restart(at, self.exit_reason(self.code), counts=self.code not in {ExitCode.STOPPED, ExitCode.DONE})
        self.killed = False
