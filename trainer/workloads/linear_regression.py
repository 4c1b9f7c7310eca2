"""linear_regression: one weight and one bias through 100 points, the smallest run with recovery."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.workloads import in_memory
from trainer.workloads.catalog import LinearRegressionParams, parse_params
from trainer.workloads.errors import DataError
from trainer.workloads.protocol import Shard

POINTS = 100
SLOPE = 2.0
NOISE = 0.3
DATA_SEED = 1

Outputs = Mapping[str, tf.Tensor]


@keras.saving.register_keras_serializable(package="trainer")
class Line(keras.layers.Layer):
    """x [batch, 1] to {y: w x + b, w, b}, each [batch, 1]: weight and bias are outputs, so that metrics can show them."""

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create weight and bias, 0."""
        del input_shape
        self.w = self.add_weight(shape=(), initializer="zeros", name="w")
        self.b = self.add_weight(shape=(), initializer="zeros", name="b")

    def call(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the prediction, and weight and bias once for each example."""
        ones = tf.ones_like(inputs)
        return {"y": self.w * inputs + self.b, "w": self.w * ones, "b": self.b * ones}

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> dict[str, tuple[int | None, ...]]:
        """Return the shape of the inputs, three times."""
        return dict.fromkeys(("y", "w", "b"), input_shape)


class LinearRegression:
    """Points x in [-1, 1], y = 2 x + N(0, 0.3); squared error, SGD. The points are the same whatever the seed.

    Raises WorkloadError for wrong `params`, DataError if `data` is not `synthetic`.
    """

    def __init__(self, params: Mapping[str, Any], data: str, seed: int) -> None:
        self._params = parse_params(LinearRegressionParams, params)
        if data != "synthetic":
            raise DataError(f"train.data {data}: linear_regression makes its own points; expected `synthetic`. Leave train.data out.")
        del seed  # it only affects the order of the points, which Shard has; the line starts at 0
        noise = np.random.default_rng(DATA_SEED).normal(0, NOISE, (POINTS, 1))
        self.x = np.linspace(-1, 1, POINTS, dtype=np.float32)[:, np.newaxis]
        self.y = (SLOPE * self.x + noise).astype(np.float32)

    def model(self) -> keras.Model:
        """Return the line, w = b = 0."""
        return keras.Sequential([keras.Input((1,), name="x"), Line(name="line")], name="linear_regression")

    def optimizer(self) -> keras.optimizers.Optimizer:
        """Return SGD."""
        return keras.optimizers.SGD(self._params.learning_rate)

    def loss(self, targets: tf.Tensor, outputs: Outputs) -> tf.Tensor:
        """Return the mean squared error."""
        return tf.reduce_mean(tf.square(targets - outputs["y"]))

    def metrics(self, targets: tf.Tensor, outputs: Outputs) -> dict[str, tf.Tensor]:
        """Return weight and bias."""
        del targets
        return {"w": tf.reduce_mean(outputs["w"]), "b": tf.reduce_mean(outputs["b"])}

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        """Return endless shuffled batches of the points."""
        return in_memory.batches(self.x, self.y, shard)

    def train_examples(self) -> int:
        """See HasTrainExamples.train_examples."""
        return POINTS

    def eval_data(self, batch_size: int) -> tf.data.Dataset:
        """Return all points once: there are no others."""
        return in_memory.once(self.x, self.y, batch_size)

    def write_summaries(self, model: keras.Model, step: int) -> None:
        """Write weight and bias as they are at this step, and their distance from the least-squares solution."""
        del step
        line = model.get_layer("line")
        (w, b), _, _, _ = np.linalg.lstsq(np.hstack([self.x, np.ones_like(self.x)]), self.y[:, 0], rcond=None)
        for name, value, best in (("w", line.w, w), ("b", line.b, b)):
            number = float(keras.ops.convert_to_numpy(value))
            tf.summary.scalar(f"line/{name}", number)
            tf.summary.scalar(f"line/{name}_from_least_squares", number - float(best))
