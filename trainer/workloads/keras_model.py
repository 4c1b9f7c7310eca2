"""A compiled Keras model as a workload: loss, optimizer and metrics are those of its `compile`, data comes from its module."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.workloads.calling import Given, call, where
from trainer.workloads.errors import WorkloadError
from trainer.workloads.protocol import Shard
from trainer.workloads.user_callbacks import UserCallbacks
from trainer.workloads.user_data import UserData

# What a subclass may override of Keras's own training, which the engine does not call.
_OVERRIDES = ("train_step", "compute_loss")


class KerasModel:
    """The workload that a compiled Keras model is, or a function that returns one.

    While training, a metric's value is that of each batch, and progress shows their mean. In an evaluation a metric goes
    through the whole held-out set as in Keras's `evaluate`, also those that are no means, such as AUC (`held_out_metrics`).
    """

    def __init__(self, source: Any, siblings: Mapping[str, Any], given: Given) -> None:
        self._source, self._given = source, given
        self.callbacks = UserCallbacks(siblings.get("callbacks"), given)
        self._train = UserData(siblings["train_data"], given, "train_data")
        self._held_out = UserData(siblings["eval_data"], given, "eval_data")
        self._model: keras.Model | None = None
        self._measured: _Metrics | None = None

    def model(self) -> keras.Model:
        """See Workload.model."""
        name = f"train.workload {self._given.workload}"
        model = call(self._source, self._given) if not isinstance(self._source, keras.Model) else self._source
        if not isinstance(model, keras.Model):
            raise WorkloadError(f"{name}: {where(self._source)} returned {type(model).__name__}; expected a compiled keras.Model")
        if not model.compiled or model.optimizer is None or getattr(model, "_compile_loss", None) is None:
            raise WorkloadError(f"{name}: the model {model.name!r} has no loss and optimizer; call model.compile(optimizer=..., loss=...)")
        for override in _OVERRIDES:
            if getattr(type(model), override) is not getattr(keras.Model, override):
                raise WorkloadError(
                    f"{name}: {type(model).__name__} has a {override} of its own, which would not be called: the trainer has its own step. "
                    "Give the loss to compile, or write a workload class (docs/workloads.md)."
                )
        if model.run_eagerly:
            raise WorkloadError(f"{name}: the model is compiled with run_eagerly=True; the trainer runs graphs alone. Leave it out.")
        if not model.built:
            inputs, _ = self._train.first(1)
            model(inputs)
        self._model = model
        return model

    def optimizer(self) -> keras.optimizers.Optimizer:
        """See Workload.optimizer."""
        return self._compiled().optimizer

    def loss(self, targets: Any, outputs: Any) -> tf.Tensor:
        """See Workload.loss: the sum of the outputs' losses, each times its weight."""
        loss = self._compiled()._compile_loss  # noqa: SLF001 - Keras has no public name for the loss without the model's own
        wanted, weights = self._parted(targets)
        if not loss.built:
            with tf.init_scope():
                loss(*_stand_ins((wanted, outputs, weights)))
        # Keras counts each output's loss in variables of its own; here it would do so on a worker that has none.
        unseen = [(v, tf.zeros(v.shape, v.dtype)) for v in loss.variables]
        with keras.StatelessScope(state_mapping=unseen):
            return loss(wanted, outputs, weights)

    def metrics(self, targets: Any, outputs: Any) -> dict[str, tf.Tensor]:
        """See Workload.metrics: each metric's value on this batch alone."""
        wanted, weights = self._parted(targets)
        return self._metrics(wanted, outputs, weights).of_batch(wanted, outputs, weights)

    def held_out_metrics(self) -> "_HeldOut | None":
        """See Accumulating.held_out_metrics."""
        return _HeldOut(self._measured, self._parted) if self._measured is not None else None

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        """See Workload.train_data."""
        return self._train.batches(shard)

    def train_examples(self) -> int | None:
        """See Counted.train_examples."""
        return self._train.count()

    def eval_data(self, batch_size: int) -> tf.data.Dataset:
        """See Workload.eval_data."""
        return self._held_out.once(batch_size)

    def _compiled(self) -> Any:
        if self._model is None:
            self.model()
        return self._model

    def _parted(self, targets: Any) -> tuple[Any, Any]:
        weighted = isinstance(targets, dict) and targets.keys() == {"targets", "weights"}
        return (targets["targets"], targets["weights"]) if weighted else (targets, None)

    def _metrics(self, targets: Any, outputs: Any, weights: Any) -> "_Metrics":
        if self._measured is None:
            with tf.init_scope():
                compiled = self._compiled()._compile_metrics  # noqa: SLF001 - Keras has no public name for what compile was given
                self._measured = _Metrics(compiled, *_stand_ins((targets, outputs, weights)))
        return self._measured


class _Metrics:
    """The metrics of a model's `compile`, with all their variables made."""

    def __init__(self, compiled: Any, targets: Any, outputs: Any, weights: Any) -> None:
        self.compiled = compiled
        if compiled is not None:
            # Some metrics make their variables when they first see data.
            compiled.update_state(targets, outputs, weights)
            compiled.reset_state()
        self._fresh = [np.asarray(v.value) for v in compiled.variables] if compiled is not None else []

    def of_batch(self, targets: Any, outputs: Any, weights: Any) -> dict[str, tf.Tensor]:
        """Return the values on one batch, without a trace in the metrics' own variables."""
        if self.compiled is None:
            return {}
        variables = self.compiled.stateless_update_state([tf.constant(v) for v in self._fresh], targets, outputs, weights)
        return _scalars(self.compiled.stateless_result(variables))


class _HeldOut:
    """The metrics on a whole held-out set, seen batch by batch; see protocol.HeldOutMetrics."""

    def __init__(self, metrics: _Metrics, parted: Callable[[Any], tuple[Any, Any]]) -> None:
        self._compiled, self._parted = metrics.compiled, parted

    def reset(self) -> None:
        """Forget what was seen."""
        if self._compiled is not None:
            self._compiled.reset_state()

    def update(self, targets: Any, outputs: Any) -> None:
        """See one batch; may be called in a graph."""
        if self._compiled is not None:
            wanted, weights = self._parted(targets)
            self._compiled.update_state(wanted, outputs, weights)

    def result(self) -> dict[str, float]:
        """Return the values on all that was seen."""
        return {} if self._compiled is None else {name: float(value) for name, value in _scalars(self._compiled.result()).items()}


def _scalars(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that are scalars; one with a value a class (F1Score without an average) counts by their mean."""
    return {name: value if not value.shape.rank else tf.reduce_mean(value) for name, value in values.items()}


def _stand_ins(values: Any) -> Any:
    """Return zeros of the form of one example, by which Keras finds out what it has to do with what."""
    return tf.nest.map_structure(
        lambda t: None if t is None else np.zeros([1, *(d or 1 for d in t.shape[1:])], t.dtype.as_numpy_dtype), values
    )
