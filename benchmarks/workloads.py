"""Workloads of the benchmark's own, in the form that a user's have: `train.workload: benchmarks.workloads:Many`."""

from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.ops import gen_experimental_dataset_ops

from benchmarks import task
from trainer.workloads.mnist_mlp import MnistMlp
from trainer.workloads.protocol import Shard

LAYERS = 80  # of Many; two variables each
UNITS = 8


class Many(MnistMlp):
    """The digits of mnist_mlp, and a network of 80 dense layers of 8 units: 160 variables, 12 thousand weights.

    Each layer but the first and the last adds a little to what comes in, so that so deep a network learns.
    """

    def model(self) -> keras.Model:
        """Return the network."""
        digits = keras.Input((task.PIXELS,), dtype="uint8")
        values = keras.layers.Dense(UNITS)(keras.layers.Rescaling(1 / 255)(digits))
        for _ in range(LAYERS - 2):
            small = keras.initializers.TruncatedNormal(stddev=0.02)
            values = keras.layers.add([values, keras.layers.Dense(UNITS, activation="relu", kernel_initializer=small)(values)])
        return keras.Model(digits, keras.layers.Dense(task.CLASSES)(values))

    def optimizer(self) -> keras.optimizers.Optimizer:
        """Return Adam, at a rate that so deep a network bears."""
        return keras.optimizers.Adam(0.003)


class Waiting(MnistMlp):
    """mnist_mlp with batches that come 50 ms late each: what a device would compute meanwhile costs no core.

    A dataset sleeps, so that it does so in workers too, which run no Python.
    """

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        """Return the digits, each batch after the delay."""
        data = super().train_data(shard)
        late: Any = gen_experimental_dataset_ops.sleep_dataset(
            data._variant_tensor,  # noqa: SLF001 - TensorFlow has no public dataset that waits
            int(task.DELAY * 1e6) * self.slower(shard),
            output_types=[tf.uint8, tf.int32],
            output_shapes=[[None, task.PIXELS], [None]],
        )
        return dataset_ops._VariantDataset(late, data.element_spec)  # noqa: SLF001

    def slower(self, shard: Shard) -> tf.Tensor:
        """Return how many times as late a worker's batches come, int64."""
        del shard
        return tf.constant(1, tf.int64)


class OneSlower(Waiting):
    """The same with a last worker whose batches come ten times as late."""

    def slower(self, shard: Shard) -> tf.Tensor:
        """Return 10 for the last worker."""
        last = tf.equal(tf.cast(shard.index, tf.int64), tf.cast(shard.count, tf.int64) - 1)
        return tf.where(last, tf.constant(task.SLOWER, tf.int64), 1)
