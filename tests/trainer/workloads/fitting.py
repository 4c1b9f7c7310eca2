"""Trains a compiled Keras model as `fit` does and as the trainer does, on the same batches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.engine import model_ops, moving_averages
from trainer.engine.train_config import TrainConfig, train_config
from trainer.settings import TrainerSettings
from trainer.workloads.keras_model import KerasWorkload
from trainer.workloads.protocol import Shard
from trainer.workloads.user_call import CallArguments

STEPS, BATCH = 4, 16
Source = tuple[Callable[[], keras.Model], Callable[[], Any]]


@dataclass(frozen=True)
class Fitted:
    """Weights after STEPS steps, with moving averages; the metrics reported by training; an evaluation of these weights."""

    weights: list[np.ndarray[Any, Any]]
    reported: dict[str, float]
    evaluated: dict[str, float]

    def differences(self, other: "Fitted") -> dict[str, float]:
        """Return the differences of the weights and of each number of the evaluation from another's."""
        differences = {name: abs(value - other.evaluated[name]) for name, value in self.evaluated.items() if name in other.evaluated}
        pairs = zip(self.weights, other.weights, strict=True)
        return {**differences, "weights": max(float(np.max(np.abs(own - others))) for own, others in pairs)}


def workload(source: Source, **more: Any) -> KerasWorkload:
    model, data = source
    return KerasWorkload(model, {"train_data": data, "eval_data": data, **more}, CallArguments("mine:model", {}, "synthetic", 0))


def config_of(batch: int = BATCH, strategy: str = "single", **train: Any) -> TrainConfig:
    """Return a configuration of STEPS steps that writes nothing."""
    section = {"workload": "mine:model", "steps": STEPS, "batch_size": batch, **train}
    return train_config(
        TrainerSettings.model_validate({"run": "fit", "strategy": strategy, "run_dir": "-", "scratch_dir": "-", "train": section})
    )


def by_keras(source: Source, fit: dict[str, Any] | None = None) -> Fitted:
    """Train with `fit` on the batches that one reader would take."""
    model_function, data = source
    keras_model = workload(source)
    keras.utils.set_random_seed(0)
    model = model_function()
    model.run_eagerly = True  # so few small steps take less time than to trace one
    batches = [_parts(*batch) for batch, _ in zip(keras_model.train_data(Shard(BATCH, 0)), range(STEPS), strict=False)]
    flat = [tf.nest.flatten(batch) for batch in batches]
    stacked = tf.data.Dataset.from_tensor_slices(tuple(tf.stack(part) for part in zip(*flat, strict=True)))
    history = model.fit(
        stacked.map(lambda *parts: tf.nest.pack_sequence_as(batches[0], parts)), shuffle=False, verbose=0, **(fit or {})
    ).history
    examples = data()
    held_out = (examples if isinstance(examples, tf.data.Dataset) else tf.data.Dataset.from_tensor_slices(examples)).batch(BATCH)
    return Fitted(
        _weights(model), {name: values[-1] for name, values in history.items()}, model.evaluate(held_out, verbose=0, return_dict=True)
    )


def by_trainer(session: Any, keras_model: KerasWorkload) -> Fitted:
    """Train with a session."""
    session.begin_at(0)
    progress = session.run(STEPS, finish=True)
    session.fetch()
    with moving_averages.swapped_in(session.model, session.optimizer):
        weights, evaluated = _weights(session.model), model_ops.evaluation(keras_model, session.model, BATCH)()
    return Fitted(weights, {"loss": progress.loss, **progress.metrics}, evaluated)


def _parts(inputs: Any, targets: Any) -> tuple[Any, ...]:
    weighted = isinstance(targets, dict) and targets.keys() == {"targets", "weights"}
    return (inputs, targets["targets"], targets["weights"]) if weighted else (inputs, targets)


def _weights(model: keras.Model) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(variable.value).astype(float) for variable in model.variables if variable.value.dtype.is_floating]
