"""The interface between a strategy and the loop: a session that runs steps and can show its state."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras

    from trainer.engine.embeddings.local_tables import LocalTables
    from trainer.engine.embeddings.sharded_tables import Tables


class PeerLostError(Exception):
    """Another task of the cluster was lost; the training process ends with exit code 75 and is started again."""


class DivergedError(Exception):
    """A loss or a weight is not finite, or the loss scale fell below 1, and the run fails: a restart would diverge again."""

    reason = "training has diverged"


class SaveError(Exception):
    """No checkpoint could be saved for `limits.save_timeout`: the steps since the last one are lost."""

    reason = "nothing could be saved"


class UnsavedStopError(Exception):
    """The task was asked to stop, and its state could not be saved meanwhile."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the error itself if it has none."""
    return next(iter(str(error).splitlines()), repr(error))


def cause(error: Any) -> str:
    """Return the line of a TensorFlow error that says what happened, and to which task."""
    lines = [line.strip() for line in str(error.message).splitlines() if line.strip()]
    relevant = [line for line in lines if "UNAVAILABLE" in line or "Unavailable" in line or "/job:" in line]
    return (relevant or lines or [type(error).__name__])[0]


@dataclass(frozen=True, order=True)
class NonFinite:
    """The first step whose loss was not finite, and the task that computed it, empty for the reporting task itself."""

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
    input_wait: float  # the fraction of its time, 0 to 1, that it waited for input
    peer_wait: float | None = None  # the same for the others' gradients; None if it waits for none


@dataclass(frozen=True)
class CallProgress:
    """The result of a call of `Session.run`.

    `step` is the global step after the call, `steps` how many it made. `loss` (None while it is not known) and `metrics` are means over the
    `measured_steps` (None: all of them; 0: the last known values). `examples` counts those of all replicas, `seconds` is the wall time. `stop`
    is true if any task of the cluster was asked to stop, `finish` if the chief ends the run early. `input_wait` and `peer_wait` are the
    fractions of this task's time, 0 to 1, that it waited for input and for gradients of others. `dropped` counts the gradients that came
    too late for their step, since the session began. `non_finite` is the first loss that was not finite.
    """

    step: int
    steps: int
    loss: float | None
    metrics: dict[str, float]
    examples: int
    seconds: float
    measured_steps: int | None = None
    stop: bool = False
    finish: bool = False
    next_steps: int | None = None
    input_wait: float | None = None
    peer_wait: float | None = None
    dropped: int | None = None
    non_finite: NonFinite | None = None
    workers: Sequence[WorkerProgress] = field(default=())


class Session(ABC):
    """A cluster that is ready to train. On the chief, model and optimizer hold the current state after `fetch`.

    `trains_changed_weights`: whether training continues with weights that were changed in `run_callbacks`. `tables` are the large embedding
    layers that a step updates row by row. The default methods suit a chief that trains its own model and optimizer, and has no steps in
    progress between two calls.
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

    @property
    def without_gradient(self) -> Sequence[str]:
        """Return the paths of the trainable variables to which the loss has no gradient; known after the first `run`."""
        return ()

    @abstractmethod
    def begin_at(self, step: int) -> None:
        """Make the state in the chief's `model` and `optimizer` the cluster's, at global step `step`.

        Every task calls it once before the first `run`; the state of the others is replaced. Sets `step` on all of them.
        """

    def flush(self) -> NonFinite | None:
        """Finish the steps in progress, so that state and `step` agree; called before a checkpoint. The next `run` reports them.

        Returns the first loss of these steps that was not finite.
        """
        return None

    def fetch(self) -> None:  # noqa: B027 - see the class
        """Copy the cluster's current state into `model` and `optimizer`; only the chief calls it."""

    def limit_steps(self, step: int) -> None:  # noqa: B027 - see the class
        """Begin no step after `step` until the next call; every task calls it.

        The `run` that reaches `step` waits for the steps in progress and reports them.
        """

    def broadcast_flags(self, flags: Sequence[bool]) -> list[bool]:
        """Return the chief's flags, at most three, on every task. Every task calls this before the first `run`.

        Raises:
            PeerLostError: a task is gone.
        """
        return list(flags)

    def run_callbacks(self, call: Callable[[], bool], *, current: bool = True) -> bool:
        """Call `call` between steps, only on the chief; return its result on every task. Every task calls this.

        Its changes of the learning rate and the weights apply to every task from the next step on. With `current`, model and
        optimizer first get the cluster's current state, as by `flush` and `fetch`.

        Raises:
            PeerLostError: a task that needs the answer is gone.
        """
        del current  # the state is always current here
        return call()

    @abstractmethod
    def run(self, steps: int, *, stop: bool = False, finish: bool = False, next_steps: int = 0) -> CallProgress:
        """Run `steps` global steps. Every task calls it with the same number.

        `stop` informs the others that this task was asked to stop. The chief's `finish` ends the run after these steps, and its
        `next_steps` proposes the steps of the next call. Every task gets all three in the result.

        Raises:
            PeerLostError: a task that the step needs is gone.
        """

    def close(self) -> None:  # noqa: B027 - see the class
        """End the cluster's work together: called once when every step is done, or when tasks of an all-reduce were asked to stop.

        Raises:
            PeerLostError: a task was lost before the chief had saved.
        """
