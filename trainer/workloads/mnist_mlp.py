"""mnist_mlp: the distributed benchmark, an MLP 784-100-10 on digits; and the base class that mnist shares."""

import math
from collections.abc import Mapping
from typing import Any

import keras

from trainer.workloads import mnist_data
from trainer.workloads.catalog import MnistMlpParams, parse_params
from trainer.workloads.classifier import ImageClassifier


class DigitClassifier(ImageClassifier):
    """Digits [batch, 784] uint8 to logits [batch, 10]; cross-entropy, accuracy, Adam. A subclass has the model.

    `data` is `synthetic`, `download` or a directory of IDX files. Raises DataError where the data is missing or wrong.
    """

    def __init__(self, learning_rate: float, data: str) -> None:
        """Load the data; `model` creates the model."""
        super().__init__(mnist_data.load(data))
        self._learning_rate = learning_rate

    def optimizer(self) -> keras.optimizers.Optimizer:
        """Return Adam."""
        return keras.optimizers.Adam(self._learning_rate)


class MnistMlp(DigitClassifier):
    """An MLP with one hidden layer. Raises WorkloadError for wrong `params`."""

    def __init__(self, params: Mapping[str, Any], data: str, seed: int) -> None:
        """Load the data; `model` creates the model."""
        self._params = parse_params(MnistMlpParams, params)
        super().__init__(self._params.learning_rate, data)
        self._seed = seed

    def model(self) -> keras.Model:
        """Return the MLP; weights are truncated normal with stddev 1/28 and 1/sqrt(hidden units), biases zero."""
        units = self._params.hidden_units

        def initializer(stddev: float, layer: int) -> keras.initializers.Initializer:
            return keras.initializers.TruncatedNormal(stddev=stddev, seed=self._seed + layer)

        return keras.Sequential(
            [
                keras.Input((mnist_data.PIXELS,), dtype="uint8", name="digits"),
                keras.layers.Rescaling(1 / 255, name="scale"),
                keras.layers.Dense(units, activation="relu", kernel_initializer=initializer(1 / 28, 0), name="hidden"),
                keras.layers.Dense(mnist_data.CLASSES, kernel_initializer=initializer(1 / math.sqrt(units), 1), name="logits"),
            ],
            name="mnist_mlp",
        )
