"""The states, statuses and log lines of runs and their tasks, for all backends."""

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from launcher.errors import LauncherError


class State(StrEnum):
    """The state of a run or of one task."""

    PENDING = "pending"  # not started, or waiting for peers
    RUNNING = "running"
    RESTARTING = "restarting"  # waiting out its back-off
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"  # asked to stop, or killed with the run
    INTERRUPTED = "interrupted"  # its supervisor is gone, or its engine did not answer for too long; tasks may continue
    UNKNOWN = "unknown"  # it has ended, and nothing left shows how


ENDED = frozenset({State.SUCCEEDED, State.FAILED, State.STOPPED, State.INTERRUPTED, State.UNKNOWN})


@dataclass(frozen=True)
class EndedAttempt:
    """An attempt that a restart follows: the time of its end (seconds since the epoch), its number, its exit code and the cause."""

    time: float
    attempt: int
    exit_code: int | None
    cause: str


@dataclass(frozen=True)
class TaskStatus:
    """One task as `launcher status` shows it."""

    name: str
    state: State
    reason: str = ""
    reason_code: str = ""  # the kind of the reason, if the backend gives one
    remedy: str = ""  # empty if none is known
    address: str = ""
    pid: int | None = None
    restarts: tuple[EndedAttempt, ...] = ()
    restarts_left: int | None = None  # how many more failures a restart may follow, if that is known
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None
    stalled: str = ""  # the activity of a task without progress: a key of trainer.stack_reading.ACTIVITY_TEXTS
    stalled_since: float | None = None
    heard: float | None = None  # the time of its last event
    # The task's own last progress, if it reports any.
    step: int | None = None
    local_step: int | None = None
    examples_per_second: float | None = None
    input_wait: float | None = None  # the share of its time, 0 to 1, that it waited for input
    peer_wait: float | None = None  # the share that it waited for the gradients of others

    @property
    def restart_count(self) -> int:
        """The number of restarts, also those older than the ones kept in `restarts`."""
        return self.restarts[-1].attempt if self.restarts else 0


class RunUnreachableError(LauncherError):
    """A run continues, but the cluster did not answer, or did not accept the credentials, for as long as the launcher waits."""

    exit_code = 69  # EX_UNAVAILABLE of sysexits(3)


@dataclass(frozen=True)
class DataLoss:
    """The reason why a run's stored data is lost or about to be lost: `deleted`, `deleting`, or `replaced` by another object of that name."""

    code: Literal["deleted", "deleting", "replaced"]
    message: str


@dataclass(frozen=True)
class Location:
    """The location where a run keeps its files: a directory of this machine, a volume of a container engine, or a directory on a cluster's claim."""

    kind: Literal["directory", "volume", "claim"]
    name: str  # the directory's path, or the name of the volume or the claim
    path: str = ""  # below the volume or the claim
    cluster: str = ""  # a claim's namespace and context, as text

    def __str__(self) -> str:
        """Return the location as text for people."""
        if self.kind == "directory":
            return self.name
        below = f", {self.path}" if self.path else ""
        return f"{self.kind} {self.name}{f' in {self.cluster}' if self.cluster else ''}{below}"


@dataclass(frozen=True)
class SaveFailure:
    """The reason why no checkpoint can be saved at present. The run fails at `until`; times in seconds since the epoch, sizes in bytes."""

    path: str  # of the directory
    cause: str
    step: int | None = None  # the step that was not saved
    size: int | None = None
    free: int | None = None  # None if the volume does not answer
    saved: int | None = None  # the step of the last checkpoint
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True)
class RunStatus:
    """One run as `launcher status` shows it."""

    name: str
    backend: str
    state: State
    reason: str = ""
    reason_code: str = ""  # of a run that does not start: the task and its reason_code, if the backend gives one
    reason_task: str = ""  # the task whose reason, with its remedy, ends `reason`; empty if the reason is the run's own
    run_dir: Location | None = None  # None if it has none
    spec_digest: str = ""
    strategy: str = ""
    started: float | None = None
    ended: float | None = None
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)  # of the last evaluation, else of training
    metrics_of: str = "training"  # or "evaluation": the source of `metrics`
    training_metrics: dict[str, float] = field(default_factory=dict)
    evaluated_step: int | None = None  # the step of the last evaluation
    ended_early: str = ""  # why the run succeeded before its last step
    examples_per_second: float | None = None
    seconds_per_step: float | None = None
    eta: float | None = None  # seconds
    checkpoint: str | None = None
    checkpoint_step: int | None = None
    save_failed: SaveFailure | None = None  # until a save succeeds again
    model: str | None = None  # the path of the exported model
    tensorboard: str = ""  # its URL, if it runs beside the tasks
    tasks: tuple[TaskStatus, ...] = ()
    data_lost: DataLoss | None = None
    user: str = ""  # the user who started it, if several may
    mine: bool = True  # False if another user is known to have started it
    attended: bool = True  # False if, for example, pods of lost nodes are replaced only while a launcher watches the run
    notified: tuple[str, ...] = ()  # the outcome of each message to people
    missing: tuple[str, ...] = ()  # objects of the run that were deleted or lost their labels, as their backend names them

    @property
    def local_run_dir(self) -> Path | None:
        """The run directory if it is on this machine, else None."""
        return Path(self.run_dir.name) if self.run_dir and self.run_dir.kind == "directory" else None

    def with_end(self, state: State, reason: str, ended: float | None, **changes: Any) -> "RunStatus":
        """Return the status with this end and further `changes`. `reason` is the run's own, or that of the task in `changes["reason_task"]`."""
        own: dict[str, Any] = {"reason_task": "", "eta": None, "save_failed": None}
        return dataclasses.replace(self, state=state, reason=reason, ended=ended, **own | changes)


def run_status_from_json(document: dict[str, Any]) -> RunStatus:
    """Return the status read from JSON that was written from `dataclasses.asdict`. Raises KeyError, TypeError or ValueError."""
    location = document.get("run_dir")  # older launchers have written a text
    typed = {
        "state": State(document["state"]),
        "run_dir": Location(**location) if isinstance(location, dict) else None,
        "tasks": tuple(map(_task_of, document["tasks"])),
        "missing": tuple(document.get("missing", ())),
        "save_failed": SaveFailure(**failure) if (failure := document.get("save_failed")) else None,
        "notified": tuple(document.get("notified", ())),
    }
    return RunStatus(**{**document, **typed})


def _task_of(document: dict[str, Any]) -> TaskStatus:
    restarts = tuple(EndedAttempt(**attempt) for attempt in document["restarts"])
    return TaskStatus(**{**document, "state": State(document["state"]), "restarts": restarts})


@dataclass(frozen=True)
class LogLine:
    """One line of one task's output; `time` in seconds since the epoch. `text` is the line as a terminal would show it.

    A line that begins like an event is one: other lines are escaped by `trainer.events.escaped`.
    """

    time: float
    task: str
    text: str
    written: bytes | None = None  # the bytes of the line, if they differ from `text`

    @property
    def raw(self) -> bytes:
        """The line as it was written."""
        return self.text.encode() if self.written is None else self.written
