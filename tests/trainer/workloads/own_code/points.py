"""A workload class, with Python's control flow on tensors in its loss."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.workloads import in_memory
from trainer.workloads.protocol import Shard


class Points:
    """Points [batch, 4] to their sums [batch, 1]."""

    def __init__(self, params: Mapping[str, Any], data: str, seed: int) -> None:
        del params, data
        self.x = np.random.default_rng(seed).normal(size=(300, 4)).astype(np.float32)
        self.y = self.x.sum(axis=1, keepdims=True)

    def model(self) -> keras.Model:
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    def optimizer(self) -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(0.05)

    def loss(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        error = tf.reduce_mean(tf.square(targets - outputs))
        if error > 100.0:
            return tf.sqrt(error)
        return error

    def metrics(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"mae": tf.reduce_mean(tf.abs(targets - outputs))}

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        return in_memory.batches(self.x, self.y, shard)

    def eval_data(self, batch_size: int) -> tf.data.Dataset:
        return in_memory.once(self.x, self.y, batch_size)
