"""The model of the group `embedding`: a table of many rows, of which an example uses a few, and a small dense head.

The target is 1 plus the mean of the signs of the ids, so that the head learns a part of it at once, and each row its own part when its id
recurs. Ids are uniform, and drawn on the worker that uses them, by operations that cost next to nothing.
"""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from trainer.workloads.protocol import Shard

IDS = 8  # of an example
BATCH = 256
DIMENSION = 16
UNITS = 16
LEARNING_RATE = 0.1
INIT_RANGE = 0.05  # rows begin between minus this and this


def sizes(rows: int, tables: int) -> list[int]:
    """Return the rows of each of `tables` tables: the second has twice those of the first, the third three times, and so on; `rows` together."""
    whole = tables * (tables + 1) // 2
    ends = [rows * (i + 1) * (i + 2) // 2 // whole for i in range(tables)]
    return [end - before for before, end in zip([0, *ends], ends, strict=False)]


def batches(rows: int, ids: int, seed: Any, start: int = 0, tables: int = 1) -> tf.data.Dataset:
    """Return endless batches of int32 ids, [BATCH, ids], and targets, [BATCH, 1]. Of several tables an example has an id of each."""

    def draw(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        seeds = tf.stack([tf.cast(seed, tf.int64), number])
        drawn = tf.random.stateless_uniform([BATCH, ids], seeds, maxval=rows, dtype=tf.int32)
        signs = tf.cast(1 - 2 * (drawn % 2), tf.float32)
        used = drawn % tf.constant(sizes(rows, tables)) if tables > 1 else drawn
        return used, 1 + tf.reduce_mean(signs, 1, keepdims=True)

    return tf.data.Dataset.counter(start).map(draw).prefetch(2)


def model(rows: int, ids: int, tables: int = 1) -> keras.Model:
    """Return the mean of an example's rows, and two dense layers."""

    def table(size: int, name: str) -> keras.layers.Embedding:
        initializer = keras.initializers.RandomUniform(-INIT_RANGE, INIT_RANGE, seed=1)
        return keras.layers.Embedding(size, DIMENSION, embeddings_initializer=initializer, name=name)

    inputs = keras.Input((ids,), dtype="int32")
    if tables == 1:
        pooled = keras.layers.GlobalAveragePooling1D()(table(rows, "table")(inputs))
    else:
        pooled = keras.layers.average([table(size, f"table_{i}")(inputs[:, i]) for i, size in enumerate(sizes(rows, tables))])
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(UNITS, activation="relu")(pooled)))


class Rows:
    """The workload of ours: `rows` in `tables` tables, `ids` in an example."""

    def __init__(self, params: Mapping[str, Any], data: str, seed: int) -> None:
        """Take the sizes."""
        del data, seed
        self._rows, self._ids, self._tables = int(params["rows"]), int(params.get("ids", IDS)), int(params.get("tables", 1))

    def model(self) -> keras.Model:
        """Return the model."""
        return model(self._rows, self._ids, self._tables)

    def optimizer(self) -> keras.optimizers.Optimizer:
        """Return Adagrad."""
        return keras.optimizers.Adagrad(LEARNING_RATE)

    def loss(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return the mean squared error."""
        return tf.reduce_mean(tf.square(targets - outputs))

    def metrics(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the mean absolute error."""
        return {"absolute_error": tf.reduce_mean(tf.abs(targets - outputs))}

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        """Return batches of the shard's own."""
        return batches(self._rows, self._ids, shard.index, shard.start, self._tables)

    def eval_data(self, batch_size: int) -> tf.data.Dataset:
        """Return a few batches that no shard has; their size is that of training."""
        del batch_size
        return batches(self._rows, self._ids, 10_000, tables=self._tables).take(4)
