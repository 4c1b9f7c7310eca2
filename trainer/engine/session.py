"""The interface between a strategy and the loop: a session that runs steps and can show its state."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras

    from trainer.engine.embeddings.local_tables import LocalTables
    from trainer.engine.embeddings.spread_tables import Tables


class PeerLostError(Exception):
    """Another task of the cluster went away; the training process ends with exit code 75 and is started again."""


class DivergedError(Exception):
    """A loss or a weight is not finite, and the run is to fail: it would do so again."""

    reason = "training has diverged"


class SaveError(Exception):
    """Nothing could be saved for as long as the run waits: the steps since the last checkpoint are lost."""

    reason = "nothing could be saved"


class StopError(Exception):
    """The task was asked to stop, and its state could not be saved meanwhile."""


def cause(error: Any) -> str:
    """Return the line of a TensorFlow error that says what happened, and to which task."""
    lines = [line.strip() for line in str(error.message).splitlines() if line.strip()]
    relevant = [line for line in lines if "UNAVAILABLE" in line or "Unavailable" in line or "/job:" in line]
    return (relevant or lines or [type(error).__name__])[0]


@dataclass(frozen=True, order=True)
class NotFinite:
    """The first step, of several, whose loss was not finite, and the task that computed it: empty where that is the reporting task."""

    step: int
    task: str = ""


@dataclass(frozen=True)
class WorkerProgress:
    """The work of one worker in a call; `local_step` counts its own steps since it started."""

    task: str
    local_step: int
    loss: float | None
    metrics: dict[str, float]
    examples_per_second: float
    seconds_per_step: float
    input_wait: float  # the part of its time, 0 to 1, that it waited for input
    peer_wait: float | None = None  # and for the others' gradients, where it does


@dataclass(frozen=True)
class Progress:
    """The result of a call of `Session.run`.

    `step` is the global step after it, `steps` how many of them the call made, `loss` (None before anything is learned or known) and
    `metrics` means over those that are `measured` (None for all of them; with 0, as last known), `examples` what all replicas saw together, `seconds` the wall time. `stop` is true when any
    task of the cluster was asked to stop, `finish` when the chief said that it is enough. `input_wait` and
    `peer_wait` are the parts of this task's time, 0 to 1, that it waited for input and for gradients of others;
    `dropped` counts the gradients that came too late for their step, since the session began. `not_finite` says where a loss was not.
    """

    step: int
    steps: int
    loss: float | None
    metrics: dict[str, float]
    examples: int
    seconds: float
    measured: int | None = None
    stop: bool = False
    finish: bool = False
    next_steps: int | None = None
    input_wait: float | None = None
    peer_wait: float | None = None
    dropped: int | None = None
    not_finite: NotFinite | None = None
    workers: Sequence[WorkerProgress] = field(default=())


class Session(ABC):
    """A cluster ready to train. Model and optimizer hold the current state after `fetch`, on the chief.

    `trains_changed_weights` says whether training continues with weights that were changed in `between_steps`. `tables` are the large embedding layers
    whose rows a step updates by themselves. The methods that do something here fit a chief that trains its own model and optimizer, with
    nothing under way between two calls.
    """

    model: "keras.Model"
    optimizer: "keras.optimizers.Optimizer"
    is_chief = True
    trains_changed_weights = True
    tables: "Tables | LocalTables | None" = None
    _step = 0

    @property
    def step(self) -> int:
        """Return the global step as of the last call."""
        return self._step

    @abstractmethod
    def begin_at(self, step: int) -> None:
        """Make the state in the chief's `model` and `optimizer` the cluster's, at global step `step`.

        Every task calls it once before the first `run`; the state of the others is replaced. Sets `step` on all of them.
        """

    def flush(self) -> NotFinite | None:
        """Finish what is under way, so that state and `step` agree; called before a checkpoint. The next `run` reports it.

        Returns where a loss was not finite meanwhile.
        """
        return None

    def fetch(self) -> None:  # noqa: B027 - see the class
        """Bring the cluster's current state into `model` and `optimizer`; only the chief calls it."""

    def hold(self, step: int) -> None:  # noqa: B027 - see the class
        """Begin no step after `step` until the next call of this; every task calls it. The `run` that comes to it reports all steps."""

    def flags_of_chief(self, flags: Sequence[bool]) -> list[bool]:
        """Return the chief's flags, at most three, on every task. Every task calls this before the first `run`.

        Raises:
            PeerLostError: a task is gone.
        """
        return list(flags)

    def between_steps(self, hooks: Callable[[], bool], *, current: bool = True) -> bool:
        """Call `hooks` between steps, only on the chief; return its answer on every task. Every task calls this.

        Its changes to the learning rate, and to the weights, hold on every task from the next step on. With `current`, model and
        optimizer have the cluster's current state before, as after `flush` and `fetch`.

        Raises:
            PeerLostError: a task that needs the answer is gone.
        """
        del current  # here it always is
        return hooks()

    @abstractmethod
    def run(self, steps: int, *, stop: bool = False, finish: bool = False, next_steps: int = 0) -> Progress:
        """Run `steps` global steps. Every task calls it with the same number.

        `stop` informs the others that this task was asked to stop; the chief's `finish` that these steps are the last
        ones, whatever is left of them; `next_steps` is the chief's proposal for the next call. All come back to every task.

        Raises:
            PeerLostError: a task that the step needs is gone.
        """

    def close(self) -> None:  # noqa: B027 - see the class
        """End the cluster's work together: called once when every step is done, or when tasks of an all-reduce were asked to stop.

        Raises:
            PeerLostError: a task went away before the chief had saved.
        """
