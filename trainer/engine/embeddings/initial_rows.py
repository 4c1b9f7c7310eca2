"""Initial rows of a table: drawn as by Keras's initializers, a block at a time, on the server that holds them."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.engine.embeddings.layers import INITIAL_ROWS, Table
from trainer.workloads.errors import WorkloadError

# (shape, seed int32 [2]) -> values
Draw = Callable[[Any, tf.Tensor], tf.Tensor]
# Standard deviation of a normal distribution that is cut off at two of its own (keras.initializers.VarianceScaling).
_TRUNCATED_NORMAL_STDDEV = 0.87962566103423978


def draw_of(table: Table) -> Draw:
    """Return a function that draws rows of `table` as its layer's initializer does, each element by itself.

    Raises:
        WorkloadError: the initializer needs all rows at once, or is not known.
    """
    initializer = table.layer.embeddings_initializer
    draw = _draw(initializer, (table.rows, table.dimension), table.dtype)
    if draw is None:
        raise WorkloadError(
            f"the layer {table.name!r} has the initializer {getattr(initializer, '__name__', type(initializer).__name__)}, which cannot draw some of the rows by "
            "themselves; expected RandomUniform, RandomNormal, TruncatedNormal, VarianceScaling or one of its kinds, Constant, Zeros or Ones; "
            f"or keep the layer whole with train.embeddings.whole: [{table.name}]"
        )
    return draw


def given_rows(table: Table) -> np.ndarray[Any, Any] | None:
    """Return the rows that a model gives its table, [rows, dimension]; None if they are drawn."""
    initializer, values = table.layer.embeddings_initializer, getattr(table.layer, INITIAL_ROWS, None)
    if values is None:
        if not isinstance(initializer, keras.initializers.Constant) or np.ndim(initializer.value) == 0:
            return None
        values = initializer.value
    rows = np.asarray(values)
    if rows.shape != (table.rows, table.dimension):
        raise WorkloadError(
            f"the layer {table.name!r} is given initial values of shape {list(rows.shape)}; expected {[table.rows, table.dimension]}"
        )
    return rows


def _draw(made: Any, shape: tuple[int, int], dtype: tf.DType) -> Draw | None:
    kinds = keras.initializers
    if not type(made).__module__.startswith("keras."):  # a class of the user's may draw something else
        return None
    if isinstance(made, kinds.RandomUniform):
        return lambda size, seed: tf.random.stateless_uniform(size, seed, made.minval, made.maxval, dtype)
    if isinstance(made, kinds.RandomNormal):
        return lambda size, seed: tf.random.stateless_normal(size, seed, made.mean, made.stddev, dtype)
    if isinstance(made, kinds.TruncatedNormal):
        return lambda size, seed: tf.random.stateless_truncated_normal(size, seed, made.mean, made.stddev, dtype)
    if isinstance(made, kinds.VarianceScaling):
        return _scaled(made, shape, dtype)
    if isinstance(made, kinds.Zeros | kinds.Ones | kinds.Constant):
        value = {kinds.Zeros: 0.0, kinds.Ones: 1.0}.get(type(made), getattr(made, "value", 0.0))
        return lambda size, _: tf.fill(size, tf.cast(0.0 if np.ndim(value) else value, dtype))
    return None


def _scaled(made: Any, shape: tuple[int, int], dtype: tf.DType) -> Draw:
    """Return a function that draws as keras.initializers.VarianceScaling: the scale depends on the shape of the whole table."""
    rows, dimension = shape
    fan = {"fan_in": rows, "fan_out": dimension}.get(made.mode, (rows + dimension) / 2)
    variance = made.scale / max(1.0, fan)
    if made.distribution == "uniform":
        limit = math.sqrt(3.0 * variance)
        return lambda size, seed: tf.random.stateless_uniform(size, seed, -limit, limit, dtype)
    if made.distribution == "truncated_normal":
        deviation = math.sqrt(variance) / _TRUNCATED_NORMAL_STDDEV
        return lambda size, seed: tf.random.stateless_truncated_normal(size, seed, 0.0, deviation, dtype)
    return lambda size, seed: tf.random.stateless_normal(size, seed, 0.0, math.sqrt(variance), dtype)
