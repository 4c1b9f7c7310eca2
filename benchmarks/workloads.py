"""The benchmark's own workloads, in the form of a user's: `train.workload: benchmarks.workloads:Many`."""

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

    Each layer but the first and the last adds a little to its input, so that such a deep network learns.
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
        """Return Adam, at a rate that suits such a deep network."""
        return keras.optimizers.Adam(0.003)


class Waiting(MnistMlp):
    """mnist_mlp with batches that are delayed by 50 ms each, which simulates a device's computation without using a core.

    A dataset sleeps, so that this works in workers too, which run no Python.
    """

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        """Return the digits, each batch after the delay."""
        data = super().train_data(shard)
        delayed: Any = gen_experimental_dataset_ops.sleep_dataset(
            data._variant_tensor,  # noqa: SLF001 - TensorFlow has no public dataset that waits
            int(task.DELAY * 1e6) * self.delay_factor(shard),
            output_types=[tf.uint8, tf.int32],
            output_shapes=[[None, task.PIXELS], [None]],
        )
        return dataset_ops._VariantDataset(delayed, data.element_spec)  # noqa: SLF001

    def delay_factor(self, shard: Shard) -> tf.Tensor:
        """Return the factor of the delay of a worker's batches, int64."""
        del shard
        return tf.constant(1, tf.int64)


class OneSlower(Waiting):
    """The same, with ten times the delay in the last worker."""

    def delay_factor(self, shard: Shard) -> tf.Tensor:
        """Return 10 for the last worker."""
        last = tf.equal(tf.cast(shard.index, tf.int64), tf.cast(shard.count, tf.int64) - 1)
        return tf.where(last, tf.constant(task.SLOWER, tf.int64), 1)
