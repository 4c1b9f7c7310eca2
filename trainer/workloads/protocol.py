"""The interface between a workload and the training engine. The engine owns the loop, the strategy and the files.

A workload defines the computation, not its placement: the same object trains on every strategy; an Agent on those in catalog.py.
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
    stream is the same, so training resumes where it stopped. This is reader `index` of `count`: their streams
    differ, and together have each example once an epoch.
    """

    batch_size: int
    seed: int
    index: int = 0
    count: int = 1
    start: int = 0


class Workload(Protocol):
    """A model, its training and its data. Constructed as `Class(params, data, seed)`.

    `inputs`, `targets` and `outputs` are tensors, or nests of them, with the batch as first dimension.
    """

    def model(self) -> "keras.Model":
        """Return the built model: its weights exist."""

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


@runtime_checkable
class Scheduling(Protocol):
    """Optional, for a learning rate schedule by epochs, whose steps depend on batch size and replicas."""

    def optimizer_for(self, examples_per_step: int) -> "keras.optimizers.Optimizer":
        """Return a new optimizer, for steps of so many examples; called instead of `optimizer`."""


@runtime_checkable
class Counted(Protocol):
    """Optional, for a known number of training examples, which `train.epochs` needs."""

    def train_examples(self) -> int | None:
        """Return the number of examples in an epoch; None if it is not known."""


@runtime_checkable
class CallingBack(Protocol):
    """Optional, for Keras's callbacks between steps; see trainer/engine/callbacks.py."""

    def callbacks(self) -> "list[keras.callbacks.Callback]":
        """Return new callbacks; called once in every task that trains."""


@runtime_checkable
class Explaining(Protocol):
    """Optional, for errors of TensorFlow and Keras that do not say what to change."""

    def explained(self, error: Exception) -> "WorkloadError | None":
        """Return an error that replaces one that ended training or an evaluation; None to leave it."""


class HeldOutMetrics(Protocol):
    """Metrics over the whole held-out set that are not a mean over batches (AUC, precision)."""

    def reset(self) -> None:
        """Reset the metrics; called before each evaluation."""

    def update(self, targets: Any, outputs: Any) -> None:
        """Add one batch. Called in a graph: state must be in existing variables."""

    def result(self) -> dict[str, float]:
        """Return the metrics of all batches since `reset`. Before the first batch only their names count."""


@runtime_checkable
class Accumulating(Protocol):
    """Optional, for metrics of a whole evaluation instead of means over batches."""

    def held_out_metrics(self) -> HeldOutMetrics | None:
        """Return the metrics, None if there are none; called after the first call of `metrics`."""


# Variables, each with the value that replaces it.
Values: TypeAlias = "Sequence[tuple[keras.Variable, tf.Tensor]]"


@runtime_checkable
class Composing(Protocol):
    """Optional, for a loss that depends on more than targets and outputs."""

    def total_loss(
        self, batch: tuple[Any, Any], outputs: Any, own: "Sequence[tf.Tensor]", values: Values, *, training: bool
    ) -> "tf.Tensor":
        """Return the scalar loss of (inputs, targets), `own` losses of the model and its layers included.

        Called instead of `loss`, in evaluations as well. `values` replace variables, which are not changed.
        """

    def check_together(self, batches: int) -> None:
        """Raise WorkloadError if the loss of several `batches`, of replicas or accumulated, must not be the mean of theirs."""


@runtime_checkable
class Stepping(Protocol):
    """Optional, for a workload's own training steps, which compute gradients and apply them."""

    def own_steps(self) -> tuple[str, ...]:
        """Return the names of its own steps, for messages; none if it is trained as other workloads are. Called after `model`."""

    def train_with(self, model: "keras.Model", optimizer: "keras.optimizers.Optimizer") -> None:
        """Set the model and the optimizer of the steps."""

    def train_step(self, inputs: Any, targets: Any) -> "dict[str, tf.Tensor]":
        """Take a step on one batch; return float32 scalars, `loss` first. Called in a graph."""

    def reset(self) -> None:
        """Reset the metrics; called before each evaluation."""

    def test_step(self, inputs: Any, targets: Any) -> "dict[str, tf.Tensor]":
        """Evaluate one batch; return the loss and metrics of all batches since `reset`. Called in a graph."""


@runtime_checkable
class Agent(Protocol):
    """A workload that learns from its own actions instead of data. A step is one action.

    `measured` names the measures of its actions, reported as means over the last `window` steps; `evaluated` those that `evaluate`
    returns beside the loss. Each task plays `boards` games at once.
    """

    measured: tuple[str, ...]
    evaluated: tuple[str, ...]
    window: int

    @property
    def boards(self) -> int:
        """Return how many games a task plays at once."""

    def model(self) -> "keras.Model":
        """Return the built model, with all state that a checkpoint needs; its trainable variables are those that playing needs."""

    def optimizer(self) -> "keras.optimizers.Optimizer":
        """Return a new optimizer."""

    def epsilon(self, step: int) -> float:
        """Return the probability of a random action at `step`."""

    def updates(self, before: int, after: int) -> int:
        """Return how many updates belong to the steps from `before` to `after`."""

    def start(self, count: int, player: int, step: int) -> "tuple[tf.Tensor, tf.Tensor]":
        """Return `count` new games, and the random seed of `player` from `step` on."""

    def play(
        self,
        weights: "Sequence[tf.Tensor]",
        games: "tf.Tensor",
        first: "tf.Tensor",
        moves: "tf.Tensor",
        epsilon: "tf.Tensor",
        seed: "tf.Tensor",
    ) -> "tuple[tf.Tensor, tf.Tensor, tf.Tensor]":
        """Play `moves` steps of each game, after `first` steps; return the games, the actions [steps, ...] and the sums of `measured`.

        Must be plain TensorFlow operations: on parameter_server it runs on workers, which run no Python.
        """

    def learn(
        self, model: Any, optimizer: Any, experience: "tf.Tensor", step: "tf.Tensor", count: "tf.Tensor", batch_size: int
    ) -> "tf.Tensor":
        """Store the `experience` after `step`, make `count` updates, and return the sum of their losses; called in a graph."""

    def evaluate(self, model: Any) -> dict[str, float]:
        """Return the loss and the measures that `evaluated` names."""


@runtime_checkable
class Summarizing(Protocol):
    """Optional, for TensorBoard beyond loss, metrics and speed."""

    def write_summaries(self, model: "keras.Model", step: int) -> None:
        """Write summaries with `tf.summary`; the default writer is that of `logs/train`, with the step set.

        Called only on the chief, every `summaries.every_steps`, with a model that holds the current weights.
        """


@runtime_checkable
class StartSummarizing(Protocol):
    """Optional, for summaries of TensorBoard that have no step."""

    def write_start_summaries(self, model: "keras.Model", logdir: str) -> None:
        """Write summaries without a step: the graph, the projector's configuration.

        Called only on the chief, before the first step of each attempt, also of a resumed one, with the same default writer.
        """
