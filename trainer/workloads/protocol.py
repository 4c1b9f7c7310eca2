"""The interface between a workload and the training engine. The engine owns the loop, the strategy and the files.

A workload defines the computation, not its placement: the same object trains under every strategy, an Agent only under those that
catalog.py lists.
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
    """One reader's part of the training data: reader `index` of `count`. A reader is one task's input pipeline.

    Together the readers give each example once an epoch. Batch n of a reader depends only on `seed`, `index` and n, so a
    resumed reader continues at batch `start`.
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
class HasOptimizerFor(Protocol):
    """Optional, for a learning rate schedule in epochs: how many steps an epoch has depends on batch size and replicas."""

    def optimizer_for(self, examples_per_step: int) -> "keras.optimizers.Optimizer":
        """Return a new optimizer, for steps of so many examples; called instead of `optimizer`."""


@runtime_checkable
class HasTrainExamples(Protocol):
    """Optional, for a known number of training examples, which `train.epochs` needs."""

    def train_examples(self) -> int | None:
        """Return the number of examples in an epoch; None if it is not known."""


@runtime_checkable
class HasCallbacks(Protocol):
    """Optional, for Keras's callbacks between steps; see trainer/engine/callbacks.py."""

    def callbacks(self) -> "list[keras.callbacks.Callback]":
        """Return new callbacks; called once in every task that trains."""


@runtime_checkable
class ExplainsErrors(Protocol):
    """Optional, for errors of TensorFlow and Keras that do not say what to change."""

    def explained(self, error: Exception) -> "WorkloadError | None":
        """Return the error to raise instead of `error`, which ended training or an evaluation; None to raise `error` itself."""


class HeldOutMetrics(Protocol):
    """Metrics over the whole held-out set that are not a mean over batches (AUC, precision)."""

    def reset(self) -> None:
        """Reset the metrics; called before each evaluation."""

    def update(self, targets: Any, outputs: Any) -> None:
        """Add one batch. Called in a graph: state must be in existing variables."""

    def result(self) -> dict[str, float]:
        """Return the metrics of all batches since `reset`. Also called before the first batch, where only the names are used."""


@runtime_checkable
class HasHeldOutMetrics(Protocol):
    """Optional, for metrics of a whole evaluation instead of means over batches."""

    def held_out_metrics(self) -> HeldOutMetrics | None:
        """Return the metrics, None if there are none; called after the first call of `metrics`."""


# Variables, each with the value that replaces it, as keras.StatelessScope takes them.
StateMapping: TypeAlias = "Sequence[tuple[keras.Variable, tf.Tensor]]"


@runtime_checkable
class HasTotalLoss(Protocol):
    """Optional, for a loss that depends on more than targets and outputs."""

    def total_loss(
        self, batch: tuple[Any, Any], outputs: Any, layer_losses: "Sequence[tf.Tensor]", state_mapping: StateMapping, *, training: bool
    ) -> "tf.Tensor":
        """Return the scalar loss of (inputs, targets), with the `layer_losses`, those that layers added (`add_loss`, regularizers).

        Called instead of `loss`, in evaluations as well. The values of `state_mapping` replace variables, which are not changed.
        """

    def check_averaging(self, batches: int) -> None:
        """Raise WorkloadError if the losses of a step's `batches` (of replicas, or accumulated) may not be averaged."""


@runtime_checkable
class HasTrainStep(Protocol):
    """Optional, for a workload's own training steps, which compute gradients and apply them."""

    def customizations(self) -> tuple[str, ...]:
        """Return what it customizes of Keras's training, for messages; empty if the engine's own step trains it. Called after `model`."""

    def prepare_steps(self, model: "keras.Model", optimizer: "keras.optimizers.Optimizer") -> None:
        """Store the model and the optimizer for the steps."""

    def train_step(self, inputs: Any, targets: Any) -> "dict[str, tf.Tensor]":
        """Take a step on one batch; return float32 scalars, `loss` first. Called in a graph."""

    def reset(self) -> None:
        """Reset the metrics; called before each evaluation."""

    def test_step(self, inputs: Any, targets: Any) -> "dict[str, tf.Tensor]":
        """Evaluate one batch; return the loss and metrics of all batches since `reset`. Called in a graph."""


@runtime_checkable
class Agent(Protocol):
    """A workload that learns from its own actions instead of data. A step is one action.

    `play_metrics` names the metrics of its actions, reported as means over the last `metric_window` steps; `eval_metrics` those that
    `evaluate` returns beside the loss.
    """

    play_metrics: tuple[str, ...]
    eval_metrics: tuple[str, ...]
    metric_window: int

    @property
    def parallel_games(self) -> int:
        """Return how many games a task plays at once."""

    def model(self) -> "keras.Model":
        """Return the built model, with all state that a checkpoint needs; its trainable variables are those that playing needs."""

    def optimizer(self) -> "keras.optimizers.Optimizer":
        """Return a new optimizer."""

    def epsilon(self, step: int) -> float:
        """Return the probability of a random action at `step`."""

    def update_count(self, before: int, after: int) -> int:
        """Return the number of updates due between steps `before` and `after`."""

    def reset(self, count: int, player: int, step: int) -> "tuple[tf.Tensor, tf.Tensor]":
        """Return `count` new games, and the random seed of `player` from `step` on."""

    def play(
        self,
        weights: "Sequence[tf.Tensor]",
        games: "tf.Tensor",
        steps_before: "tf.Tensor",
        steps: "tf.Tensor",
        epsilon: "tf.Tensor",
        seed: "tf.Tensor",
    ) -> "tuple[tf.Tensor, tf.Tensor, tf.Tensor]":
        """Play `steps` steps of each game, after `steps_before`; return the games, their transitions and the sums of `play_metrics`.

        Transitions (state, action, reward, next state) are int8 [steps x games, width], as `learn` takes them.

        Must be plain TensorFlow operations: on parameter_server it runs on workers, which run no Python.
        """

    def learn(
        self, model: Any, optimizer: Any, transitions: "tf.Tensor", step: "tf.Tensor", count: "tf.Tensor", batch_size: int
    ) -> "tf.Tensor":
        """Store the `transitions` after `step`, make `count` updates, and return the sum of their losses; called in a graph."""

    def evaluate(self, model: Any) -> dict[str, float]:
        """Return the loss and the metrics that `eval_metrics` names."""


@runtime_checkable
class WritesSummaries(Protocol):
    """Optional, for TensorBoard beyond loss, metrics and speed."""

    def write_summaries(self, model: "keras.Model", step: int) -> None:
        """Write summaries with `tf.summary`; the default writer is that of `logs/train`, with the step set.

        Called only on the chief, every `summaries.every_steps`, with a model that holds the current weights.
        """


@runtime_checkable
class WritesStartSummaries(Protocol):
    """Optional, for summaries of TensorBoard that have no step."""

    def write_start_summaries(self, model: "keras.Model", logdir: str) -> None:
        """Write summaries without a step: the graph, the projector's configuration.

        Called only on the chief, before the first step of each attempt, also of a resumed one, with the same default writer.
        """
