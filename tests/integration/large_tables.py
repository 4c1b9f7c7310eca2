"""User code for test_sharded_tables.py: a classifier whose tables have half a million rows in all; few of them are ever used."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.trainer.engine.small import delayed
from trainer.workloads import in_memory
from trainer.workloads.protocol import Shard

TABLES, ROWS, DIMENSION = 4, 125_000, 4
NARROW_ROWS = 125_001  # of one more table, of dimension 1
BATCH_MICROSECONDS = 50_000


class LargeTables:
    """Ids [batch, 4], one of each table, to a logit [batch]; the first ids also of a narrow table. Steps are slow, so that they need little of a processor while a test waits."""

    def __init__(self, params: Mapping[str, Any], data: str, seed: int) -> None:
        del params, data, seed
        self._ids = np.random.default_rng(1).integers(ROWS, size=(1000, TABLES))
        self._classes = (self._ids[:, 0] % 2).astype(np.float32)

    def model(self) -> keras.Model:
        ids = keras.Input([TABLES], dtype="int64")
        rows = [keras.layers.Embedding(ROWS, DIMENSION, name=f"table_{index}")(ids[:, index]) for index in range(TABLES)]
        rows.append(keras.layers.Embedding(NARROW_ROWS, 1, name="narrow")(ids[:, 0]))
        logit = keras.layers.Dense(1)(keras.layers.Concatenate()(rows))
        return keras.Model(ids, keras.layers.Reshape(())(logit))

    def optimizer(self) -> keras.optimizers.Optimizer:
        return keras.optimizers.Adagrad(0.05, initial_accumulator_value=1e-5)

    def loss(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=outputs))

    def metrics(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"accuracy": tf.reduce_mean(tf.cast((outputs > 0) == (targets > 0), tf.float32))}

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        return delayed(in_memory.batches(self._ids, self._classes, shard), BATCH_MICROSECONDS)

    def eval_data(self, batch_size: int) -> tf.data.Dataset:
        return in_memory.once(self._ids, self._classes, batch_size)
