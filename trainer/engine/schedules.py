"""Learning rates over the steps, as `train.learning_rate` describes them."""

import math
from typing import Any

import keras
import tensorflow as tf

from trainer.settings import LearningRate


@keras.saving.register_keras_serializable("trainer")
class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """rate(step) = initial x warm-up(step) x fall(step - warm-up steps), with step counted from 0.

    `initial` is the rate that falls; `decay_steps` of cosine and linear is filled in. Formulas, with
    p = min(step / decay_steps, 1): cosine final + (1 - final)(1 + cos(pi p))/2 (Loshchilov and Hutter 2016,
    without restarts); linear 1 - (1 - final) p; exponential decay_rate^(step / decay_steps); piecewise the factor
    of the last boundary that was passed.
    """

    def __init__(self, initial: float, settings: dict[str, Any]) -> None:
        self._initial = initial
        self._settings = LearningRate.model_validate(settings)

    def __call__(self, step: Any) -> tf.Tensor:
        """Return the learning rate of `step`, a float32 scalar."""
        step = tf.cast(step, tf.float32)
        warmup = float(self._settings.warmup_steps)
        fallen = self._initial * self._fall(tf.maximum(step - warmup, 0.0))
        return tf.where(step < warmup, self._initial * (step + 1.0) / max(warmup, 1.0), fallen)

    def _fall(self, step: tf.Tensor) -> tf.Tensor:
        settings = self._settings
        final = settings.final or 0.0
        passed = step / float(settings.decay_steps or 1)
        if settings.schedule == "cosine":
            return final + (1.0 - final) * 0.5 * (1.0 + tf.cos(math.pi * tf.minimum(passed, 1.0)))
        if settings.schedule == "linear":
            return 1.0 - (1.0 - final) * tf.minimum(passed, 1.0)
        if settings.schedule == "exponential":
            rate = 0.1 if settings.decay_rate is None else settings.decay_rate
            return tf.pow(rate, tf.floor(passed) if settings.staircase else passed)
        if settings.schedule == "piecewise":
            factors = tf.constant([1.0, *(settings.factors or [])], tf.float32)
            boundaries = tf.constant(settings.boundaries or [], tf.float32)
            return tf.gather(factors, tf.reduce_sum(tf.cast(step >= boundaries, tf.int32)))
        return tf.ones_like(step)

    def get_config(self) -> dict[str, Any]:
        """Return what `from_config` makes the same schedule of."""
        return {"initial": self._initial, "settings": self._settings.model_dump(exclude_none=True)}


def schedule(settings: LearningRate, own_rate: float, steps: int) -> Schedule:
    """Return the schedule for a run of `steps` steps; `own_rate` is the workload's, taken where `initial` is left out."""
    if settings.schedule in ("cosine", "linear") and settings.decay_steps is None:
        settings = settings.model_copy(update={"decay_steps": max(1, steps - settings.warmup_steps)})
    return Schedule(settings.initial or own_rate, settings.model_dump(exclude_none=True))
