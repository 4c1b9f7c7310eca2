"""Classifies sine, square and sawtooth waves: a workload class, with its own model, loss, optimizer and data.

docs/workloads.md has the protocol and a shorter one.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.workloads import in_memory
from trainer.workloads.errors import WorkloadError
from trainer.workloads.protocol import Shard

SHAPES = ("sine", "square", "sawtooth")


class Waves:
    """Waves [batch, length, 1] to logits [batch, 3]. `params`: length (samples), noise (standard deviation)."""

    def __init__(self, params: Mapping[str, Any], data: str, seed: int) -> None:
        self._length, self._noise = params.get("length", 64), params.get("noise", 0.2)
        if self._length < 16:
            raise WorkloadError(f"train.params.length is {self._length}; expected 16 or more samples of each wave")
        if data != "synthetic":
            raise WorkloadError(f"train.data is {data!r}; these waves are generated, not read; leave it out")
        self._train = self._waves(6000, seed)
        self._held_out = self._waves(1500, 12345)

    def model(self) -> keras.Model:
        """Return the network, built."""
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((self._length, 1)),
                layers.Conv1D(16, 7, activation="relu"),
                layers.MaxPooling1D(4),
                layers.Conv1D(32, 5, activation="relu"),
                layers.GlobalMaxPooling1D(),
                layers.Dense(len(SHAPES)),
            ]
        )

    def optimizer(self) -> keras.optimizers.Optimizer:
        """Return Adam with a learning rate that falls."""
        return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.01, 400, alpha=0.1))

    def loss(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return the cross-entropy, damped above 5: a wave that is only noise must not dominate."""
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=outputs))
        # Python's `if` on a tensor: the trainer converts it, as tf.function does.
        if loss > 5.0:
            loss = 5.0 + 0.1 * (loss - 5.0)
        return loss

    def metrics(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the part of the waves that are classified correctly."""
        return {"accuracy": tf.reduce_mean(tf.cast(tf.argmax(outputs, axis=1) == targets, tf.float32))}

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        """Return endless batches for one reader."""
        return in_memory.batches(*self._train, shard)

    def eval_data(self, batch_size: int) -> tf.data.Dataset:
        """Return the held-out waves once."""
        return in_memory.once(*self._held_out, batch_size)

    def _waves(self, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(seed)
        shape = random.integers(0, len(SHAPES), count)
        turns = random.uniform(1.5, 4, (count, 1)) * np.linspace(0, 1, self._length) + random.uniform(0, 1, (count, 1))
        waves = np.stack([np.sin(2 * np.pi * turns), np.sign(np.sin(2 * np.pi * turns)), 2 * (turns % 1) - 1])[shape, np.arange(count)]
        noisy = waves + random.normal(0, self._noise, waves.shape)
        return noisy[:, :, np.newaxis].astype(np.float32), shape.astype(np.int64)
