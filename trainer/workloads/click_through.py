"""click_through: wide and deep on click logs, 26 categories in embedding tables beside 13 numbers."""

from collections.abc import Mapping
from typing import Any, cast

import keras
import tensorflow as tf

from trainer.workloads import criteo, planted_clicks
from trainer.workloads.catalog import ClickThroughParams, parse_params
from trainer.workloads.criteo import CATEGORIES, NUMBERS
from trainer.workloads.errors import DataError
from trainer.workloads.protocol import Shard

# Probability thresholds for the AUC of a whole evaluation; between them it is interpolated.
THRESHOLDS = 1000


# Few examples of a batch use a row, so it accumulates small squared gradients: with Keras's 0.1 it would hardly change.
INITIAL_ACCUMULATOR = 1e-5


class ClickThrough:
    """13 numbers and 26 categories to the logit [batch] of a click; cross-entropy, AUC, Adagrad.

    `data` is `synthetic` or a directory with Criteo's files. Raises WorkloadError for wrong `params`, DataError where the data is
    missing or wrong.
    """

    def __init__(self, params: Mapping[str, Any], data: str, seed: int) -> None:
        self._params = parse_params(ClickThroughParams, params)
        if data == "download":
            raise DataError(
                "train.data download: Criteo's logs cannot be downloaded without accepting their licence; expected `synthetic`, or a directory "
                "with the published files. Copy them to a directory and name it."
            )
        self._files = None if data == "synthetic" else criteo.find(data)
        self._seed = seed
        self.rows = (self._params.rows,) * CATEGORIES

    def model(self) -> keras.Model:
        """Return the network: a weight for each id, and an MLP on a vector for each id and the numbers' logarithms."""
        numbers = keras.Input((NUMBERS,), name="numbers")
        categories = keras.Input((CATEGORIES,), dtype="int64", name="categories")
        # With the sign: Criteo's numbers go down to -3.
        logs = keras.ops.multiply(keras.ops.sign(numbers), keras.ops.log1p(keras.ops.absolute(numbers)))
        weights, vectors = [], []
        for column, rows in enumerate(self.rows):
            ids = categories[:, column]
            weights.append(keras.layers.Embedding(rows, 1, embeddings_initializer="zeros", name=f"wide_c{column + 1}")(ids))
            initializer = keras.initializers.RandomUniform(-0.05, 0.05, seed=self._seed + column)
            vectors.append(
                keras.layers.Embedding(rows, self._params.dimension, embeddings_initializer=initializer, name=f"deep_c{column + 1}")(ids)
            )
        hidden = keras.layers.Concatenate(name="deep")([*vectors, logs])
        for layer, units in enumerate(self._params.hidden_units, 1):
            kernel = keras.initializers.GlorotUniform(seed=self._seed + CATEGORIES + layer)
            hidden = keras.layers.Dense(units, activation="relu", kernel_initializer=kernel, name=f"hidden_{layer}")(hidden)
        kernel = keras.initializers.GlorotUniform(seed=self._seed + CATEGORIES)
        deep_logit = keras.layers.Dense(1, kernel_initializer=kernel, name="deep_logit")(hidden)
        logit = keras.layers.Add(name="sum")([*weights, deep_logit])
        return keras.Model(
            {"numbers": numbers, "categories": categories}, keras.layers.Reshape((), name="logit")(logit), name="click_through"
        )

    def optimizer(self) -> keras.optimizers.Optimizer:
        """Return Adagrad."""
        return keras.optimizers.Adagrad(self._params.learning_rate, initial_accumulator_value=INITIAL_ACCUMULATOR)

    def loss(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return the mean cross-entropy, the log loss."""
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=outputs))

    def metrics(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the batch's AUC."""
        return {"auc": batch_auc(targets, outputs)}

    def held_out_metrics(self) -> "HeldOutAuc":
        """See HasHeldOutMetrics.held_out_metrics."""
        return HeldOutAuc()

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        """Return endless shuffled batches of the training examples."""
        if self._files is not None:
            return criteo.batches(self._files, self.rows, shard)
        return planted_clicks.batches(self.rows, self._params.zipf_exponent, self._params.examples, shard)

    def train_examples(self) -> int | None:
        """See HasTrainExamples.train_examples."""
        return self._params.examples if self._files is None else self._files.count_examples()

    def eval_data(self, batch_size: int) -> tf.data.Dataset:
        """Return the held-out examples once."""
        if self._files is not None:
            return criteo.once(self._files, self.rows, batch_size, self._params.eval_examples)
        return planted_clicks.once(self.rows, self._params.zipf_exponent, batch_size, self._params.eval_examples)


class HeldOutAuc:
    """The AUC of all held-out examples; see HeldOutMetrics."""

    def __init__(self) -> None:
        self._auc = keras.metrics.AUC(THRESHOLDS, from_logits=True, name="auc")

    def reset(self) -> None:
        """Reset the metric."""
        self._auc.reset_state()

    def update(self, targets: tf.Tensor, outputs: tf.Tensor) -> None:
        """Add one batch."""
        self._auc.update_state(targets, outputs)

    def result(self) -> dict[str, float]:
        """Return the AUC of all batches since `reset`."""
        return {"auc": float(self._auc.result())}


def batch_auc(labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """Return the probability that a click's score is above another example's, ties count half; 0.5 if the batch has only clicks or none."""
    ordered = tf.sort(scores)
    below, up_to = (tf.searchsorted(ordered, scores, side=side) for side in ("left", "right"))
    ranks = tf.cast(below + up_to + 1, tf.float32) / 2
    clicks = tf.reduce_sum(labels)
    pairs = clicks * (tf.cast(tf.size(labels), tf.float32) - clicks)
    above = tf.reduce_sum(ranks * labels) - clicks * (clicks + 1) / 2
    return cast("tf.Tensor", tf.where(pairs > 0, above / tf.maximum(pairs, 1), 0.5))
