"""Classifies the points of three concentric rings: a model function, with a tf.data.Dataset of examples for the workers.

The function creates its variables itself, as with tf.estimator: by Keras layers or by tf.compat.v1.get_variable. It is
called again for each graph, and finds them by their names.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.workloads.train_op import TrainOp, minimize

RADII = (1.0, 2.0, 3.0)


def classify(features: tf.Tensor, targets: tf.Tensor, mode: str, params: dict[str, Any]) -> tuple[dict[str, tf.Tensor], tf.Tensor, TrainOp]:
    """Return predictions, loss and train op for points [batch, 2] and the numbers of their rings [batch]."""
    hidden = keras.layers.Dense(params["units"], activation="tanh", name="hidden")(features)
    hidden = keras.layers.Dropout(0.05)(hidden, training=mode == "train")
    with tf.compat.v1.variable_scope("top"):
        weights = tf.compat.v1.get_variable("weights", [params["units"], len(RADII)])
        biases = tf.compat.v1.get_variable("biases", [len(RADII)], initializer=tf.zeros_initializer())
    logits = hidden @ weights + biases
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits))
    return {"ring": tf.argmax(logits, axis=1), "logits": logits}, loss, minimize(loss, keras.optimizers.Adam(params["learning_rate"]))


def metrics(targets: tf.Tensor, predictions: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Return the metrics beside the loss, each a mean over the batch."""
    return {"accuracy": tf.reduce_mean(tf.cast(predictions["ring"] == targets, tf.float32))}


def train_data(seed: int) -> tf.data.Dataset:
    """Return single examples; the trainer shards them between the workers, shuffles, caches and batches them.

    Each worker creates its own dataset, so this is plain TensorFlow; to read files, use tf.data.TFRecordDataset(...).map(parse).
    """
    return _rings(6000, seed)


def eval_data() -> tf.data.Dataset:
    """Return the held-out examples."""
    return _rings(1500, seed=12345)


def _rings(count: int, seed: int) -> tf.data.Dataset:
    random = np.random.default_rng(seed)
    ring, angle = random.integers(0, len(RADII), count), random.uniform(0, 2 * np.pi, count)
    radius = np.take(RADII, ring) + random.normal(0, 0.1, count)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((points, ring.astype(np.int64)))
