"""The time inside TensorFlow functions, and the waits that are measured by it."""

import math

import tensorflow as tf
from tensorflow.python.framework import config


def is_allowed() -> bool:
    """Return whether waits may be measured: not where operations must be deterministic, as a clock is not."""
    return not config.is_op_determinism_enabled()


def now() -> tf.Tensor:
    """Return the time in seconds, a float64 scalar; NaN where operations must be deterministic, as a clock is not."""
    if not is_allowed():
        return tf.constant(math.nan, tf.float64)
    return tf.timestamp()


def since(began: tf.Tensor) -> tf.Tensor:
    """Return the seconds since `began`, a float32 scalar."""
    return tf.cast(now() - began, tf.float32)


def fraction(waited: float, seconds: float) -> float | None:
    """Return the fraction of `seconds` that was waited, 0 to 1; None if there was no clock."""
    return None if math.isnan(waited) else float(waited / seconds)
