"""A workload that trains at a walking pace: a run that only has to be under way leaves the cores to what is tested beside it."""

import tensorflow as tf
from tensorflow.python.data.experimental.ops.testing import sleep

from trainer.workloads.mnist_mlp import MnistMlp
from trainer.workloads.protocol import Shard

_MICROSECONDS = 50_000  # for each batch


class Paced(MnistMlp):
    """mnist_mlp whose batches come twenty a second."""

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        """Return the digits' batches, each after a wait. An operation waits: workers of parameter servers run no Python."""
        return super().train_data(shard).apply(sleep(_MICROSECONDS))
