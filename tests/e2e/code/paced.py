"""Workloads that train at a walking pace: a run that only has to be under way leaves the cores to what is tested beside it."""

from typing import ClassVar

import tensorflow as tf
from tensorflow.python.data.experimental.ops.testing import sleep

from trainer.workloads.mnist_mlp import MnistMlp
from trainer.workloads.protocol import Shard


class Paced(MnistMlp):
    """mnist_mlp whose batches come twenty a second."""

    microseconds: ClassVar[int] = 50_000  # for each batch

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        """Return the digits' batches, each after a wait. An operation waits: workers of parameter servers run no Python."""
        return super().train_data(shard).apply(sleep(self.microseconds))


class Slow(Paced):
    """mnist_mlp whose batches come five a second."""

    microseconds = 200_000
