"""Learning rates: the schedules of `train.learning_rate`, and the rate or schedule that an optimizer has."""

import math
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from trainer.settings import LearningRate


@keras.saving.register_keras_serializable("trainer")
class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """rate(step) = initial x warm-up(step) x decay(step - warm-up steps), with step counted from 0.

    `initial` is the rate that decays; `decay_steps` of cosine and linear is filled in. Formulas, with
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
        decayed = self._initial * self._decay(tf.maximum(step - warmup, 0.0))
        return tf.where(step < warmup, self._initial * (step + 1.0) / max(warmup, 1.0), decayed)

    def _decay(self, step: tf.Tensor) -> tf.Tensor:
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

    def described(self) -> str:
        """Return the schedule in the terms of `train.learning_rate`: `cosine(decay_steps=900, initial=0.1)`."""
        settings = self._settings.model_dump(exclude_none=True, exclude_defaults=True) | {"initial": self._initial}
        return _call(settings.pop("schedule", "constant"), settings)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments from which `from_config` creates the same schedule."""
        return {"initial": self._initial, "settings": self._settings.model_dump(exclude_none=True)}


def schedule(settings: LearningRate, initial: float, steps: int) -> Schedule | float:
    """Return the schedule for a run of `steps` steps that begins at the rate `initial`, or that rate if it never changes."""
    if settings.schedule == "constant" and not settings.warmup_steps:
        return initial
    if settings.schedule in ("cosine", "linear") and settings.decay_steps is None:
        settings = settings.model_copy(update={"decay_steps": max(1, steps - settings.warmup_steps)})
    return Schedule(initial, settings.model_dump(exclude_none=True))


def inner(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer whose rate counts: the one that a LossScaleOptimizer wraps, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def constant_rate(optimizer: keras.optimizers.Optimizer) -> float | None:
    """Return the learning rate if it is a variable; None if it is a schedule or a function."""
    # `learning_rate` is the value of a schedule; Keras has no public name for the schedule itself.
    rate = inner(optimizer)._learning_rate  # noqa: SLF001
    return float(str(rate.numpy())) if isinstance(rate, keras.Variable) else None  # 0.01, not 0.009999999776482582 as by float()


def set_rate(optimizer: keras.optimizers.Optimizer, rate: float | None) -> None:
    """Set the learning rate if it is a variable; None leaves a schedule as it is."""
    if rate is not None:
        inner(optimizer)._learning_rate.assign(rate)  # noqa: SLF001


def described(optimizer: keras.optimizers.Optimizer) -> str:
    """Return an optimizer's current learning rate as text to read and to compare: `0.001`, `ExponentialDecay(decay_rate=0.9, ...)`."""
    if (rate := constant_rate(optimizer)) is not None:
        return str(rate)
    return _described(inner(optimizer)._learning_rate)  # noqa: SLF001


def _described(value: Any) -> str:
    if isinstance(value, Schedule):
        return value.described()
    if not callable(value):
        return repr(value)
    try:
        config = value.get_config()
    except (AttributeError, NotImplementedError):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return _call(type(value).__name__, {key: one for key, one in config.items() if key != "name"})


def _call(name: str, arguments: Mapping[str, object]) -> str:
    return f"{name}({', '.join(f'{key}={_described(value)}' for key, value in sorted(arguments.items()))})"
