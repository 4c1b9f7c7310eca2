"""A Keras model's own `train_step` and `test_step`, called as in `fit` and `evaluate`, one batch at a time."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from trainer.workloads.autograph import workload_errors_unchanged
from trainer.workloads.errors import WorkloadError
from trainer.workloads.unscaled_losses import unscaled_losses

# Methods of Keras's training loop whose overrides are called.
_CUSTOMIZABLE = ("train_step", "test_step", "compute_metrics", "metrics", "reset_metrics", "get_metrics_result")


def overrides(model: keras.Model, name: str) -> bool:
    """Return whether the model's class overrides a method or property of Keras's own training."""
    return getattr(type(model), name) is not getattr(keras.Model, name)


def customizations(model: keras.Model) -> tuple[str, ...]:
    """Return the methods that a compiled model's class overrides, or else the metrics that `compile` does not know; empty if the engine's step suffices."""
    overridden = tuple(name for name in _CUSTOMIZABLE if overrides(model, name))
    compiled = (model._loss_tracker, model._compile_metrics, *(model._compile_loss.metrics if model._compile_loss else ()))  # noqa: SLF001
    known = {id(metric) for metric in compiled}
    return overridden or tuple(f"the metric {metric.name}" for metric in model.metrics if id(metric) not in known)


def build(model: keras.Model, data: tuple[Any, ...], *, metrics: bool) -> None:
    """Create the variables of the loss trackers and, with `metrics`, of the metrics of `compile`, as `fit` does for such data."""
    compiled = model._compile_metrics  # noqa: SLF001
    # Bypasses Keras's __setattr__, which would track them as the model's own.
    object.__setattr__(model, "_compile_metrics", compiled if metrics else None)
    try:
        with tf.init_scope():
            model._symbolic_build(data_batch=data)  # noqa: SLF001
    finally:
        object.__setattr__(model, "_compile_metrics", compiled)


class KerasSteps:
    """Runs a model's own steps. Metrics are those of one batch while training, and of all batches since `reset` in an evaluation."""

    def __init__(self, model: keras.Model, name: str, data: Callable[[Any, Any], tuple[Any, ...]]) -> None:
        """Take a compiled model; `data` converts inputs and targets to the argument of its steps."""
        self._model, self._name, self._data = model, name, data

    def train(self, inputs: Any, targets: Any) -> dict[str, tf.Tensor]:
        """Take a step on one batch; return the loss and the other values of `train_step`. Called in a graph."""
        self._model.reset_metrics()
        with workload_errors_unchanged():
            return self._checked_logs("train_step", self._model.train_step(self._data(inputs, targets)))

    def reset(self) -> None:
        """Reset the metrics for an evaluation."""
        self._model.reset_metrics()

    def test(self, inputs: Any, targets: Any) -> dict[str, tf.Tensor]:
        """Evaluate one batch; return loss and metrics of all batches since `reset`. Called in a graph."""
        measured: dict[str, tf.Tensor] = {}

        def step() -> None:
            # Only on the first replica: else each replica would add the batch to the metrics.
            if not tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group):
                measured.update(self._checked_logs("test_step", self._model.test_step(self._data(inputs, targets))))

        with unscaled_losses():
            self._model.distribute_strategy.run(step)
        return measured

    def _checked_logs(self, step: str, logs: Any) -> dict[str, tf.Tensor]:
        if not isinstance(logs, Mapping):
            raise WorkloadError(
                f"{self._name}: {step} returned {type(logs).__name__}; expected a dict of names and numbers: "
                "return {metric.name: metric.result() for metric in self.metrics}"
            )
        measured = dict(flatten(logs))
        if "loss" not in measured:
            raise WorkloadError(
                f'{self._name}: {step} returned {", ".join(measured) or "nothing"}, and no loss; return {{"loss": ..., ...}}'
            )
        return {"loss": measured.pop("loss"), **measured}


def flatten(logs: Mapping[str, Any]) -> Iterator[tuple[str, tf.Tensor]]:
    """Yield names and float32 scalars, also those of nested dicts, which some metrics return, as `fit` does; a value for each class becomes their mean."""
    for name, value in logs.items():
        if isinstance(value, Mapping):
            yield from flatten(value)
        else:
            yield str(name), tf.reduce_mean(tf.cast(value, tf.float32))
