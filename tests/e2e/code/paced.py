"""Workloads that train slowly, so that a run which only has to be in progress leaves the cores to the rest of the test."""

from typing import ClassVar

import tensorflow as tf
from tensorflow.python.data.experimental.ops.testing import sleep

from trainer.workloads.mnist_mlp import MnistMlp
from trainer.workloads.protocol import Shard


class Paced(MnistMlp):
    """mnist_mlp with twenty batches a second."""

    microseconds: ClassVar[int] = 50_000  # for each batch

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        """Return the digits' batches, each after a wait: of a TensorFlow operation, because workers of parameter servers run no Python."""
        return super().train_data(shard).apply(sleep(self.microseconds))


class Slow(Paced):
    """mnist_mlp with five batches a second."""

    microseconds = 200_000
