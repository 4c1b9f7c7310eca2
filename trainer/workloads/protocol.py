"""The interface between a workload and the training engine. The engine owns the loop, the strategy and the files.

A workload says what to compute, never where: the same object trains on every strategy; an Agent on those of its row in catalog.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from trainer.workloads.errors import WorkloadError


@dataclass(frozen=True)
class Shard:
    """The part of the endless stream of training batches that one reader takes.

    A reader takes batch `start`, `start + 1`, ... of its own stream. With the same seed and index the
    stream is the same, so training resumes where it stopped. `index` of `count` readers: their streams
    differ, and together visit each example once an epoch.
    """

    batch_size: int
    seed: int
    index: int = 0
    count: int = 1
    start: int = 0


class Workload(Protocol):
    """A model, how it learns and from what. Built as `Class(params, data, seed)`.

    `inputs`, `targets` and `outputs` are tensors, or nests of them, with the batch as first dimension.
    """

    def model(self) -> "keras.Model":
        """Return the model, built: its weights exist."""

    def optimizer(self) -> "keras.optimizers.Optimizer":
        """Return a new optimizer."""

    def loss(self, targets: Any, outputs: Any) -> "tf.Tensor":
        """Return the scalar loss, a mean over the batch."""

    def metrics(self, targets: Any, outputs: Any) -> "dict[str, tf.Tensor]":
        """Return scalar metrics by name, each a mean over the batch."""

    def train_data(self, shard: Shard) -> "tf.data.Dataset":
        """Return endless (inputs, targets) batches of `shard.batch_size` examples.

        Must be plain TensorFlow operations: on parameter_server it runs on workers, which run no Python.
        """

    def eval_data(self, batch_size: int) -> "tf.data.Dataset":
        """Return the held-out set once, in (inputs, targets) batches; the last may be smaller."""


class Scheduling(Protocol):
    """Optional, for a learning rate that follows epochs: how many steps make one depends on batch and replicas."""

    def optimizer_for(self, examples_per_step: int) -> "keras.optimizers.Optimizer":
        """Return what `optimizer` returns, for steps of so many examples; called in its place."""


class Counted(Protocol):
    """Optional, for a known number of training examples: `train.epochs` may then say how long."""

    def train_examples(self) -> int | None:
        """Return how many there are in an epoch; None where that is not known."""


class CallingBack(Protocol):
    """Optional, for Keras's callbacks between steps; see trainer/engine/callbacks.py."""

    def callbacks(self) -> "list[keras.callbacks.Callback]":
        """Return them, new ones; called once, in every task that trains."""


@runtime_checkable
class Explaining(Protocol):
    """Optional, for errors of TensorFlow and Keras that do not say what to change."""

    def explained(self, error: Exception) -> "WorkloadError | None":
        """Return the error in the place of one that ended training or an evaluation; None where that stays."""


class HeldOutMetrics(Protocol):
    """Metrics that go through the whole held-out set, because no mean over batches gives them (AUC, precision)."""

    def reset(self) -> None:
        """Forget what was seen; called before each evaluation."""

    def update(self, targets: Any, outputs: Any) -> None:
        """See one batch. Called in a graph: state must be in variables that exist."""

    def result(self) -> dict[str, float]:
        """Return the metrics of all that was seen since `reset`."""


class Accumulating(Protocol):
    """Optional, for metrics of a whole evaluation in the place of means over batches."""

    def held_out_metrics(self) -> HeldOutMetrics | None:
        """Return them, once `metrics` was called for the first time; None for none."""


# Variables, and what each of them counts as.
Values: TypeAlias = "Sequence[tuple[keras.Variable, tf.Tensor]]"


@runtime_checkable
class Composing(Protocol):
    """Optional, for a loss that is more than `loss` of targets and outputs."""

    def total_loss(
        self, batch: tuple[Any, Any], outputs: Any, own: "Sequence[tf.Tensor]", values: Values, *, training: bool
    ) -> "tf.Tensor":
        """Return the scalar loss of (inputs, targets), `own` losses of the model and its layers included.

        Called in the place of `loss`, in evaluations as well. With `values`, these stand for the variables, which are not changed.
        """

    def check_together(self, batches: int) -> None:
        """Raise WorkloadError where the loss of `batches`, of several replicas or accumulated, is not to be the mean of theirs."""


@runtime_checkable
class Stepping(Protocol):
    """Optional, for training steps of the workload's own, which compute gradients and apply them."""

    def own_steps(self) -> tuple[str, ...]:
        """Return, for messages, what is its own; nothing where it is to be trained as other workloads are. `model` was called before."""

    def train_with(self, model: "keras.Model", optimizer: "keras.optimizers.Optimizer") -> None:
        """Take over the model and the optimizer that the steps are for."""

    def train_step(self, inputs: Any, targets: Any) -> "dict[str, tf.Tensor]":
        """Take a step on one batch; return float32 scalars, `loss` first. Called in a graph."""

    def reset(self) -> None:
        """Forget what was seen in an evaluation; called before each."""

    def test_step(self, inputs: Any, targets: Any) -> "dict[str, tf.Tensor]":
        """Look at one batch of an evaluation; return the loss and metrics of all that was seen since `reset`. Called in a graph."""


@runtime_checkable
class Agent(Protocol):
    """A workload that learns from its own actions: no data are given to it. A step is one thing done.

    `measured` names the measures of what was done, as means over the last `window` steps, `evaluated` what `evaluate`
    returns beside the loss; `boards` games go on at once where it plays.
    """

    measured: tuple[str, ...]
    evaluated: tuple[str, ...]
    window: int

    @property
    def boards(self) -> int:
        """Return how many games a task plays at once."""

    def model(self) -> "keras.Model":
        """Return what is learned, built, with all that going on from a checkpoint needs; trainable is what playing needs."""

    def optimizer(self) -> "keras.optimizers.Optimizer":
        """Return a new optimizer."""

    def epsilon(self, step: int) -> float:
        """Return the probability of doing something at random at `step`."""

    def updates(self, before: int, after: int) -> int:
        """Return how many updates belong to the steps from `before` to `after`."""

    def start(self, count: int, player: int, step: int) -> "tuple[tf.Tensor, tf.Tensor]":
        """Return `count` new games, and the seed of what `player` draws from `step` on."""

    def play(
        self,
        weights: "Sequence[tf.Tensor]",
        games: "tf.Tensor",
        first: "tf.Tensor",
        moves: "tf.Tensor",
        epsilon: "tf.Tensor",
        seed: "tf.Tensor",
    ) -> "tuple[tf.Tensor, tf.Tensor, tf.Tensor]":
        """Go on for `moves` steps of each game, after `first`; return the games, what was done [steps, ...], the sums of `measured`.

        Must be plain TensorFlow operations: on parameter_server it runs on workers, which run no Python.
        """

    def learn(
        self, model: Any, optimizer: Any, experience: "tf.Tensor", step: "tf.Tensor", count: "tf.Tensor", batch_size: int
    ) -> "tf.Tensor":
        """Take what was done after `step`, make `count` updates, and return the sum of their losses; called in a graph."""

    def evaluate(self, model: Any) -> dict[str, float]:
        """Return the loss and what `evaluated` names."""


class Summarizing(Protocol):
    """Optional, for TensorBoard beyond loss, metrics and speed."""

    def write_summaries(self, model: "keras.Model", step: int) -> None:
        """Write summaries with `tf.summary`; a writer for `logs/train` is the default, its step is set.

        Called on the chief alone every `summaries.every_steps`, with a model that holds the current weights.
        """

    def write_start_summaries(self, model: "keras.Model", logdir: str) -> None:
        """Write what needs no step: the graph, the projector's configuration.

        Called on the chief alone before the first step of each attempt, also of a resumed one, with the same default writer.
        """
