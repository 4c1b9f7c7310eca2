"""The computations that all strategies share: a built model, the loss of a batch, an evaluation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from trainer.engine import global_seed, optimizer_setup, user_step
from trainer.engine.embeddings import layers
from trainer.engine.embeddings.local_tables import LocalTables
from trainer.engine.train_config import TrainConfig
from trainer.settings import Embeddings
from trainer.workloads import pipeline
from trainer.workloads.errors import DataError, WorkloadError
from trainer.workloads.protocol import Agent, HasHeldOutMetrics, HasTotalLoss, HasTrainStep, HeldOutMetrics, StateMapping, Workload

if TYPE_CHECKING:
    from trainer.engine.embeddings.sharded_tables import Tables

_TRACED = "_traced_for"  # the attribute of a model with a workload and the result of `traced` for both


@dataclass(frozen=True)
class BuiltModel:
    """A workload's model and optimizer, with all their variables created; `tables` are the layers that are updated by rows, not by the optimizer."""

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    tables: LocalTables | None = None


def build(workload: Workload | Agent, config: TrainConfig, replicas: int = 1, *, by_rows: bool = False) -> BuiltModel:
    """Build the model and the optimizer by the configuration, with initial weights from its seed.

    Workloads that implement `HasOptimizerFor` get the number of examples of a step, of all `replicas` together. With `by_rows` the model's large
    embedding layers become LocalTables, if possible.

    Raises:
        WorkloadError: the model has no weights to train, not the precision of the settings, or a loss that is not the mean of several batches' losses.
    """
    optimizer_setup.prepare(config)
    model = workload.model()
    global_seed.attach(model, replicas)
    if not model.built or not (model.trainable_variables or layers.tables(model)):
        message = f"the model {model.name!r} has no trainable weights: give it an input shape, so that it is built, and a trainable layer"
        raise WorkloadError(message)
    optimizer_setup.check_precision(model, config)
    if isinstance(workload, HasTotalLoss):
        workload.check_averaging(config.train.gradients.accumulate * replicas)
    optimizer = optimizer_setup.optimizer(workload, config, config.batch_size * config.train.gradients.accumulate * replicas)
    tables = None
    if by_rows and not isinstance(workload, Agent) and not user_step.customizations(workload):
        tables = LocalTables.of(model, optimizer, config.train.embeddings or Embeddings())
    if not tables:
        optimizer.build(model.trainable_variables)
    if isinstance(workload, HasTrainStep):
        workload.prepare_steps(model, optimizer)
    # A compiled model has an optimizer of its own, perhaps another one by now: checkpoints have the one that trains, beside the model.
    model._delete_tracking("optimizer")  # noqa: SLF001 - tf.train.Checkpoint has no public way to leave a part out
    return BuiltModel(model, optimizer, tables)


def check_normalization(model: keras.Model, config: TrainConfig, tasks: int) -> None:
    """Raise WorkloadError if the model normalizes by the batches of all replicas together, and these are in several tasks."""
    for layer in model._flatten_layers() if tasks > 1 else ():  # noqa: SLF001 - the public `layers` are those of one level
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise WorkloadError(
                f"train.workload {config.train.workload}: the layer {layer.name!r} has synchronized=True, but tasks of {config.strategy} do not "
                "exchange the statistics of their batches; leave it out, or use strategy mirrored, whose replicas do"
            )


def is_seed(variable: keras.Variable) -> bool:
    """Return whether a variable is the state of a random layer; other integers (Normalization's count) are data."""
    return str(variable.name).startswith("seed_generator_state")


def seeds(model: keras.Model) -> list[tf.Variable]:
    """Return the states of the model's random layers, which Keras keeps among the variables that are not trained."""
    return [v.value for v in model.non_trainable_variables if is_seed(v)]


def seed_of_replica(seed: Any, index: int) -> np.ndarray:
    """Return what is added to a seed generator's state, [seed, count of draws], for a replica: seeds differ, counts do not."""
    own = np.zeros(seed.shape, seed.dtype.as_numpy_dtype)
    own.flat[0] = index
    return own


def seed_graph(seed: int, task: int, step: int) -> None:
    """Let tf.random's operations in the current graph, and in graphs inside of it, draw other numbers in each task, and after each resume at another step.

    At step 0 the first task draws by the run's `seed`. The state of these operations is not saved, so an attempt cannot continue their numbers.
    """
    own = int(np.random.SeedSequence([seed, task, step]).generate_state(1)[0]) if task or step else seed
    tf.compat.v1.get_default_graph().seed = own


def metric_names(workload: Workload | Agent, model: keras.Model) -> tuple[str, ...]:
    """Return the names of the workload's metrics, in order, without running the model."""
    return tuple(workload.eval_metrics) if isinstance(workload, Agent) else traced(workload, model)[0]


def evaluated_names(workload: Workload | Agent, model: keras.Model) -> tuple[str, ...] | None:
    """Return the names of an evaluation's loss and metrics; None if metrics of the whole held-out set know their names only after a batch."""
    names = ("loss", *metric_names(workload, model))
    if isinstance(workload, Agent) or user_step.customizations(workload) or not isinstance(workload, HasHeldOutMetrics):
        return names
    held_out = workload.held_out_metrics()
    if held_out is None:
        return names
    try:
        held_out.reset()
        own = held_out.result()
    except Exception:  # noqa: BLE001 - a user's metrics may divide by the number of batches, 0
        return None
    return tuple(dict.fromkeys([*names, *own])) if own else None


def traced(workload: Workload, model: keras.Model) -> tuple[tuple[str, ...], int]:
    """Return the names of the metrics, and the number of operations of the model and its metrics; a model is traced once."""
    traced_workload, result = getattr(model, _TRACED, (None, ((), 0)))
    if traced_workload is not workload:
        result = _trace(workload, model)
        object.__setattr__(model, _TRACED, (workload, result))  # bypasses Keras, which would track them
    return result


def _trace(workload: Workload, model: keras.Model) -> tuple[tuple[str, ...], int]:
    names: list[str] = []
    spec = workload.eval_data(1).element_spec

    @tf.function(autograph=False)
    def trace(inputs: Any, targets: Any) -> None:
        # TensorFlow traces this twice if the workload creates variables.
        if isinstance(workload, HasTrainStep) and user_step.customizations(workload):
            names[:] = (name for name in workload.test_step(inputs, targets) if name != "loss")
            return
        names[:] = workload.metrics(targets, in_float32(model(inputs, **training_argument(model, training=False))))

    graph = trace.get_concrete_function(*spec).graph
    return tuple(names), len(graph.get_operations())


def batch_size_of(inputs: Any) -> tf.Tensor:
    """Return the number of examples of a batch as a float32 scalar."""
    return tf.cast(tf.shape(tf.nest.flatten(inputs)[0])[0], tf.float32)


def training_argument(model: keras.Model, *, training: bool) -> dict[str, bool]:
    """Return `training` as the keyword argument of a model's call; empty if its `call` takes none, as Keras's own trainer does."""
    return {"training": training} if model._call_has_training_arg else {}  # noqa: SLF001 - Keras has no public name for it


def in_float32(outputs: Any) -> Any:
    """Return a model's outputs with those of half precision in float32, masks included: losses and metrics need the precision."""
    return tf.nest.map_structure(lambda t: _widened(t) if t.dtype in (tf.float16, tf.bfloat16) else t, outputs)


def _widened(tensor: tf.Tensor) -> tf.Tensor:
    wide = tf.cast(tensor, tf.float32)
    if (mask := getattr(tensor, "_keras_mask", None)) is not None:  # Keras's losses and metrics look for it there
        wide._keras_mask = mask  # noqa: SLF001
    return wide


def measures(workload: Workload, loss: tf.Tensor, targets: Any, outputs: Any) -> tf.Tensor:
    """Return loss and metrics of a batch in one float32 vector, in the order of `metric_names`."""
    values = workload.metrics(targets, outputs)
    return tf.stack([tf.cast(value, tf.float32) for value in (loss, *values.values())])


def total_loss(
    workload: Workload, batch: tuple[Any, Any], outputs: Any, layer_losses: Sequence[tf.Tensor], state_mapping: StateMapping = ()
) -> tf.Tensor:
    """Return the loss that training minimizes for a batch (inputs, targets): the workload's, and the `layer_losses`, e.g. weight decay.

    The values of `state_mapping` replace variables that are not read, as on a worker of parameter servers.
    """
    if isinstance(workload, HasTotalLoss):
        return tf.cast(workload.total_loss(batch, outputs, layer_losses, state_mapping, training=True), tf.float32)
    loss = tf.cast(workload.loss(batch[1], outputs), tf.float32)
    return tf.add_n([loss, *(tf.reduce_sum(tf.cast(one, tf.float32)) for one in layer_losses)]) if layer_losses else loss


def held_out_loss(workload: Workload, model: keras.Model, batch: tuple[Any, Any], outputs: Any) -> tf.Tensor:
    """Return the loss of a batch in an evaluation: only the workload's, unless it composes another."""
    if isinstance(workload, HasTotalLoss):
        return tf.cast(workload.total_loss(batch, outputs, model.losses, (), training=False), tf.float32)
    return tf.cast(workload.loss(batch[1], outputs), tf.float32)


def repeat(steps: tf.Tensor, step: Callable[[tf.Tensor], tf.Tensor], width: int, *, unrolled: int = 1) -> tf.Tensor:
    """Run `step` `steps` times in one TensorFlow loop, called with the number of steps so far; return the sum of its float32 vectors [width].

    One more element, the last, counts the steps before the first whose loss, the vector's first element, was not finite.
    An iteration runs `unrolled` steps, while as many remain: each iteration of a loop over several tasks costs each task a message.
    Written without AutoGraph, which takes half a second to read this and Keras's code at every start.
    """

    def loop(count: int, state: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        def body(done: tf.Tensor, totals: tf.Tensor, finite: tf.Tensor) -> tuple[tf.Tensor, ...]:
            for _ in range(count):
                measured = step(done)
                done, totals, finite = done + 1, totals + measured, finite_until(finite, done, measured[0])
            return done, totals, finite

        after: tuple[tf.Tensor, ...] = tf.while_loop(lambda done, *_: done + count <= steps, body, state)
        return after

    state = (tf.constant(0), tf.zeros([width]), tf.constant(0))
    for count in dict.fromkeys([unrolled, 1]):
        state = loop(count, state)
    _, totals, finite = state
    return tf.concat([totals, [tf.cast(finite, tf.float32)]], 0)


def finite_until(before: tf.Tensor, done: tf.Tensor, loss: tf.Tensor) -> tf.Tensor:
    """Return the number of steps before the first non-finite loss: `before` after `done` steps; one more if all were finite and `loss` is. int32 scalars."""
    return before + tf.cast((before == done) & tf.math.is_finite(loss), tf.int32)


def evaluation(workload: Workload | Agent, model: keras.Model, batch_size: int, tables: "Tables | None" = None) -> "ModelEvaluation":
    """Return the evaluation of the model; `tables` has the rows of its large layers."""
    if isinstance(workload, Agent):
        return AgentEvaluation(workload, model)
    if isinstance(workload, HasTrainStep) and user_step.customizations(workload):
        return StepEvaluation(workload, model, batch_size)
    return BatchMeansEvaluation(workload, model, batch_size, tables)


def held_out_data(workload: Workload, batch_size: int) -> tf.data.Dataset:
    """Return the held-out set, over which each evaluation iterates once."""
    return pipeline.untuned(workload.eval_data(batch_size))


def _of_any_size(batch: Callable[[Any, Any], Any], data: tf.data.Dataset) -> Any:
    """Return a function of a batch of `data` as a TensorFlow function, traced once; if it needs to know the batch's size, once for each size."""
    try:
        return tf.function(batch, autograph=False).get_concrete_function(*data.element_spec)
    except WorkloadError:
        raise
    except Exception:  # noqa: BLE001 - an error of another kind comes again with the first batch
        return tf.function(batch, autograph=False)


class ModelEvaluation(ABC):
    """Evaluates the weights that a model has. `names` are those of the loss and the metrics."""

    names: tuple[str, ...]

    @abstractmethod
    def run(self, stop_requested: Callable[[], bool]) -> dict[str, float] | None:
        """Return loss and metrics; None if `stop_requested` returned True before all examples were seen.

        Raises:
            DataError: the held-out set has no batch.
        """

    def __call__(self) -> dict[str, float]:
        """Return loss and metrics."""
        return self.run(lambda: False) or {}


class AgentEvaluation(ModelEvaluation):
    """Evaluates an agent by its actions."""

    def __init__(self, agent: Agent, model: keras.Model) -> None:
        self.names = ("loss", *agent.eval_metrics)
        self._agent, self._model = agent, model

    def run(self, stop_requested: Callable[[], bool]) -> dict[str, float] | None:
        """See ModelEvaluation.run."""
        return None if stop_requested() else self._agent.evaluate(self._model)


class StepEvaluation(ModelEvaluation):
    """Evaluates a model by the workload's own step."""

    def __init__(self, workload: Any, model: keras.Model, batch_size: int) -> None:
        self.names = ("loss", *metric_names(workload, model))
        self._workload, self._data = workload, held_out_data(workload, batch_size)
        self._batch = _of_any_size(workload.test_step, self._data)

    def run(self, stop_requested: Callable[[], bool]) -> dict[str, float] | None:
        """See ModelEvaluation.run."""
        self._workload.reset()
        measured: dict[str, tf.Tensor] = {}
        for inputs, targets in self._data:
            measured = self._batch(inputs, targets)
            if stop_requested():
                return None
        if not measured:
            raise _no_batch()
        return named(self.names, (measured[name] for name in self.names))


class BatchMeansEvaluation(ModelEvaluation):
    """Evaluates a model by means over the held-out set, and by metrics that the workload computes over all of it; traced once."""

    def __init__(self, workload: Workload, model: keras.Model, batch_size: int, tables: "Tables | None" = None) -> None:
        self.names = ("loss", *metric_names(workload, model))  # first: a compiled model has its held-out metrics only after a trace
        self._data = held_out_data(workload, batch_size)
        self._held_out: HeldOutMetrics | None = workload.held_out_metrics() if isinstance(workload, HasHeldOutMetrics) else None
        held_out = self._held_out

        def batch(inputs: Any, targets: Any) -> tuple[tf.Tensor, tf.Tensor]:
            def forward() -> Any:
                return in_float32(model(inputs, **training_argument(model, training=False)))

            with tables.look_up_for_evaluation(forward) if tables else nullcontext():
                outputs = forward()
            size = batch_size_of(inputs)
            if held_out is not None:
                held_out.update(targets, outputs)
            loss = held_out_loss(workload, model, (inputs, targets), outputs)
            return measures(workload, loss, targets, outputs) * size, size

        self._batch = _of_any_size(batch, self._data)

    def run(self, stop_requested: Callable[[], bool]) -> dict[str, float] | None:
        """See ModelEvaluation.run."""
        if self._held_out is not None:
            self._held_out.reset()
        sums: Any = 0.0
        count: Any = 0.0
        for inputs, targets in self._data:
            values, size = self._batch(inputs, targets)
            sums, count = sums + values, count + size
            if stop_requested():
                return None
        if not count:
            raise _no_batch()
        return named(self.names, (sums / count).numpy()) | (self._held_out.result() if self._held_out is not None else {})


def _no_batch() -> DataError:
    return DataError("the held-out set (eval_data) has no batch: give it examples, and batch them without drop_remainder")


def named(names: Iterable[str], values: Iterable[Any]) -> dict[str, float]:
    """Pair names with values as plain floats."""
    return {name: float(value) for name, value in zip(names, values, strict=True)}
