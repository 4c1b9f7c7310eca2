"""Rows of a table before training: what Keras's initializers draw, a block at a time, on the server that holds them."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.engine.embeddings.layers import INITIAL_ROWS, Table
from trainer.workloads.errors import WorkloadError

# Of a shape and a seed, int32 [2], the values.
Draw = Callable[[Any, tf.Tensor], tf.Tensor]
_TRUNCATED = (
    0.87962566103423978  # standard deviation of a normal distribution cut off at two of its own (keras.initializers.VarianceScaling)
)


def draw_of(table: Table) -> Draw:
    """Return what draws the rows of `table` as its layer's initializer does, each element by itself.

    Raises:
        WorkloadError: the initializer needs all rows at once, or is not known.
    """
    made = table.layer.embeddings_initializer
    draw = _draw(made, (table.rows, table.dimension), table.dtype)
    if draw is None:
        raise WorkloadError(
            f"the layer {table.name!r} has the initializer {getattr(made, '__name__', type(made).__name__)}, which cannot draw some of the rows by "
            "themselves; expected RandomUniform, RandomNormal, TruncatedNormal, VarianceScaling or one of its kinds, Constant, Zeros or Ones; "
            f"or keep the layer whole with train.embeddings.whole: [{table.name}]"
        )
    return draw


def initial_rows(table: Table) -> np.ndarray[Any, Any] | None:
    """Return the rows that a model gives its table, [rows, dimension]; None where they are drawn."""
    made, given = table.layer.embeddings_initializer, getattr(table.layer, INITIAL_ROWS, None)
    if given is None:
        if not isinstance(made, keras.initializers.Constant) or np.ndim(made.value) == 0:
            return None
        given = made.value
    rows = np.asarray(given)
    if rows.shape != (table.rows, table.dimension):
        raise WorkloadError(
            f"the layer {table.name!r} is given start values of shape {list(rows.shape)}; expected {[table.rows, table.dimension]}"
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
    """Return what keras.initializers.VarianceScaling draws: its scale follows from the shape of the whole table."""
    rows, dimension = shape
    fan = {"fan_in": rows, "fan_out": dimension}.get(made.mode, (rows + dimension) / 2)
    variance = made.scale / max(1.0, fan)
    if made.distribution == "uniform":
        limit = math.sqrt(3.0 * variance)
        return lambda size, seed: tf.random.stateless_uniform(size, seed, -limit, limit, dtype)
    if made.distribution == "truncated_normal":
        deviation = math.sqrt(variance) / _TRUNCATED
        return lambda size, seed: tf.random.stateless_truncated_normal(size, seed, 0.0, deviation, dtype)
    return lambda size, seed: tf.random.stateless_normal(size, seed, 0.0, math.sqrt(variance), dtype)
