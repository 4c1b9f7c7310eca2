"""mnist_mlp: the distributed benchmark, an MLP 784-100-10 on digits; with the part that mnist shares."""

import math
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from trainer.workloads import in_memory, mnist_data
from trainer.workloads.catalog import MnistMlpParams
from trainer.workloads.classifier import accuracy, cross_entropy, parse_params
from trainer.workloads.protocol import Shard


class DigitClassifier:
    """Digits [batch, 784] uint8 to logits [batch, 10]; cross-entropy, accuracy, Adam. A subclass has the model.

    `data` is `synthetic`, `download` or a directory of IDX files. Raises DataError where the data is missing or wrong.
    """

    def __init__(self, learning_rate: float, data: str) -> None:
        """Load the data; the model is made when it is asked for."""
        self._learning_rate = learning_rate
        self._digits = mnist_data.load(data)

    def optimizer(self) -> keras.optimizers.Optimizer:
        """Return Adam."""
        return keras.optimizers.Adam(self._learning_rate)

    def loss(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return the mean softmax cross-entropy."""
        return cross_entropy(targets, outputs)

    def metrics(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the accuracy."""
        return {"accuracy": accuracy(targets, outputs)}

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        """Return endless shuffled batches of the training digits."""
        return in_memory.batches(self._digits.train.images, self._digits.train.labels, shard)

    def train_examples(self) -> int:
        """See Counted.train_examples."""
        return len(self._digits.train.labels)

    def eval_data(self, batch_size: int) -> tf.data.Dataset:
        """Return the test digits once."""
        return in_memory.once(self._digits.test.images, self._digits.test.labels, batch_size)


class MnistMlp(DigitClassifier):
    """An MLP with one hidden layer. Raises WorkloadError for wrong `params`."""

    def __init__(self, params: Mapping[str, Any], data: str, seed: int) -> None:
        """Load the data; the model is made when it is asked for."""
        self._params = parse_params(MnistMlpParams, params)
        super().__init__(self._params.learning_rate, data)
        self._seed = seed

    def model(self) -> keras.Model:
        """Return the MLP; weights are truncated normal with stddev 1/28 and 1/sqrt(hidden units), biases zero."""
        units = self._params.hidden_units

        def start(stddev: float, layer: int) -> keras.initializers.Initializer:
            return keras.initializers.TruncatedNormal(stddev=stddev, seed=self._seed + layer)

        return keras.Sequential(
            [
                keras.Input((mnist_data.PIXELS,), dtype="uint8", name="digits"),
                keras.layers.Rescaling(1 / 255, name="scale"),
                keras.layers.Dense(units, activation="relu", kernel_initializer=start(1 / 28, 0), name="hidden"),
                keras.layers.Dense(mnist_data.CLASSES, kernel_initializer=start(1 / math.sqrt(units), 1), name="logits"),
            ],
            name="mnist_mlp",
        )
