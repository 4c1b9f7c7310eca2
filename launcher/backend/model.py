"""What every backend tells about a run: states, statuses, and the calls behind the CLI's verbs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

from launcher.backend.stored import Part, Stored
from launcher.errors import LauncherError
from launcher.plan.models import Plan


class State(StrEnum):
    """The state of a run or of one task."""

    PENDING = "pending"  # not started, or waiting for peers
    RUNNING = "running"
    RESTARTING = "restarting"  # waiting out its back-off
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"  # by the user, after a checkpoint
    INTERRUPTED = "interrupted"  # the launcher that kept the run is gone


ENDED = frozenset({State.SUCCEEDED, State.FAILED, State.STOPPED, State.INTERRUPTED})


@dataclass(frozen=True)
class Restart:
    """One restart: when (seconds since the epoch), which attempt ended, how and why."""

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
    remedy: str = ""  # what to do about it, where that is known
    address: str = ""
    pid: int | None = None
    restarts: tuple[Restart, ...] = ()
    restarts_left: int | None = None  # how many more failures may be followed by a restart, where that is known
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None
    # The task's own last progress, if it reports any.
    step: int | None = None
    local_step: int | None = None
    examples_per_second: float | None = None
    input_wait: float | None = None  # the part of its time, 0 to 1, that it waited for input
    peer_wait: float | None = None  # and for the gradients of others


class OutOfSightError(LauncherError):
    """A run goes on where it is, but nothing is heard of it any more."""

    exit_code = 69  # EX_UNAVAILABLE of sysexits(3)


@dataclass(frozen=True)
class Loss:
    """Why what a run has stored is not, or will not be, where it was: `deleted`, `deleting`, or `replaced` by something of that name."""

    code: Literal["deleted", "deleting", "replaced"]
    message: str


@dataclass(frozen=True)
class RunStatus:
    """One run as `launcher status` shows it."""

    name: str
    backend: str
    state: State
    reason: str = ""
    run_dir: str = ""
    spec_digest: str = ""
    strategy: str = ""
    started: float | None = None
    ended: float | None = None
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)  # of the last evaluation, else of training
    metrics_of: str = "training"  # or evaluation: what `metrics` are of
    training_metrics: dict[str, float] = field(default_factory=dict)
    evaluated_step: int | None = None  # after which the last evaluation was
    ended_early: str = ""  # why the run has succeeded before its last step
    examples_per_second: float | None = None
    seconds_per_step: float | None = None
    eta: float | None = None  # seconds
    checkpoint: str | None = None
    checkpoint_step: int | None = None
    model: str | None = None  # where the exported model is
    tensorboard: str = ""  # where it answers, when it runs beside the tasks
    tasks: tuple[TaskStatus, ...] = ()
    data_lost: Loss | None = None
    user: str = ""  # who started it, where several may
    mine: bool = True  # not where that is known to be somebody else
    missing: tuple[str, ...] = ()  # objects of the run that somebody has deleted or hidden, as their backend names them


@dataclass(frozen=True)
class LogLine:
    """One line of one task's output; `time` in seconds since the epoch. `text` is what a terminal would show of it.

    An event, or what the program wrote as `trainer.events.escaped` has it.
    """

    time: float
    task: str
    text: str
    written: bytes | None = None  # all that was written, where that is something else

    @property
    def whole(self) -> bytes:
        """The line as it was written."""
        return self.text.encode() if self.written is None else self.written


@dataclass(frozen=True)
class Board:
    """Where TensorBoard answers; `serve`, where there is one, has to be called and serves it until the process is interrupted."""

    url: str
    serve: Callable[[], None] | None = None


@dataclass(frozen=True)
class Where:
    """Which cluster and namespace of it, for a backend that has several; where left out, where the run was started last, else the user's own."""

    context: str | None = None
    namespace: str | None = None


def always() -> bool:
    """Say yes: a start that is always wanted."""
    return True


class Backend(Protocol):
    """Runs plans. Every call raises launcher.errors.LauncherError with a remedy when it cannot do its part."""

    def prepare(self, plan: Plan, spec: dict[str, Any]) -> Iterator[str]:
        """Do what a start needs first and may take long, building an image say; yield what a person should know, as it comes."""

    def reserve(self, plan: Plan, spec: dict[str, Any]) -> AbstractContextManager[None]:
        """Keep other machines from starting the run for a `with` block, until `start` in it has; nothing where the runs are of this machine.

        Raises UsageError when one starts it, or it is at work.
        """

    def start(self, plan: Plan, spec: dict[str, Any], *, detach: bool, wanted: Callable[[], bool] = always) -> None:
        """Start the run and return as soon as it is on its way; detached, it outlives this process.

        `wanted` is asked again and again by a backend whose start may wait for what was there before: once it says no, nothing is started.
        """

    def status(self, name: str) -> RunStatus:
        """Tell how the run is. Never blocks on the run itself."""

    def spec(self, name: str) -> dict[str, Any] | None:
        """Return the spec, as dumped, that the run was started with last; None where that is not known."""

    def tend(self, name: str) -> list[str]:
        """Do for a run what is left to whoever watches it, called again and again while it is watched; tell people what was done."""

    def runs(self) -> list[RunStatus]:
        """Tell of every run that is known, newest first."""

    def logs(self, name: str, *, tasks: list[str], follow: bool, since: float | None, tail: int | None) -> Iterator[LogLine]:
        """Yield lines of the tasks in order of time; with `follow` until the run has ended."""

    def stop(self, name: str, *, now: bool = False, tell: Callable[[str], object] = str) -> dict[str, int]:
        """Ask every task to save and stop; `now` kills. Returns when nothing of the run is left. Idempotent.

        `tell` is called, in the same thread, with what a person should know meanwhile.
        Returns how many of each kind of object were removed, such as {"container": 4, "network": 1}; empty where a run has none.
        """

    def delete(self, name: str) -> None:
        """Delete what the run stored. Refuses while it runs."""

    def set_aside(self, name: str, aside: str) -> str:
        """Keep what the run stored under the name `aside`, out of a new run's way; return where it is now. Nothing of it runs."""

    def fetch(self, name: str, part: Part) -> AbstractContextManager[Stored]:
        """Open for a `with` block what the run has stored of a kind. Raises UsageError when there is nothing of it."""

    def tensorboard(self, name: str, *, host: str | None, port: int | None) -> Board | None:
        """Have TensorBoard serve the run's logs and say where; None where the logs are in a directory of this machine."""
