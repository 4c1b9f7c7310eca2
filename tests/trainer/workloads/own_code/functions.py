"""Model functions in the three signatures, with variables made in each possible way."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.workloads.train_op import TrainOp, minimize


def _points(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    points = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    return points, (points.sum(axis=1) > 0).astype(np.int64)


def train_data() -> tuple[np.ndarray, np.ndarray]:
    return _points(400, 0)


def eval_data() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(_points(150, 1))


def metrics(targets: tf.Tensor, predictions: tf.Tensor) -> dict[str, tf.Tensor]:
    right = tf.reduce_mean(tf.cast(tf.argmax(predictions, axis=1) == targets, tf.float32))
    if right < 0.0:  # an `if` on a tensor, as AutoGraph has it
        right = tf.constant(0.0)
    return {"accuracy": right}


def _loss(targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits))
    for _ in tf.range(2):
        loss = loss * 1.0
    return loss if loss < 50.0 else tf.constant(50.0)


def two(features: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, TrainOp]:
    with tf.compat.v1.variable_scope("linear"):
        weights = tf.compat.v1.get_variable("weights", [4, 2])
        biases = tf.compat.v1.get_variable("biases", [2], initializer=tf.zeros_initializer())
    logits = features @ weights + biases
    loss = _loss(targets, logits)
    return logits, loss, minimize(loss, keras.optimizers.Adam(0.05))


def three(features: tf.Tensor, labels: tf.Tensor, mode: str) -> tuple[tf.Tensor, tf.Tensor, Any]:
    hidden = keras.layers.Dense(8, activation="relu")(features)
    hidden = keras.layers.BatchNormalization()(hidden, training=mode == "train")
    if mode == "train":
        hidden = keras.layers.Dropout(0.1)(hidden, training=True)
    logits = keras.layers.Dense(2)(hidden)
    return logits, _loss(labels, logits), keras.optimizers.SGD(0.2) if mode == "train" else None


def four(features: tf.Tensor, targets: tf.Tensor, mode: str, params: dict[str, Any]) -> tuple[tf.Tensor, tf.Tensor, Any]:
    assert mode in ("train", "eval")
    hidden = tf.nn.relu(keras.layers.Dense(params["units"])(features))
    logits = keras.layers.Dense(2)(hidden)
    scale = tf.Variable(tf.ones([2]), name="scale")
    seen = tf.Variable(0.0, trainable=False, name="seen")
    seen.assign(seen * 0.9 + 0.1 * tf.reduce_mean(features))
    logits = logits * scale
    loss = _loss(targets, logits)
    return logits, loss, minimize(loss, keras.optimizers.Adam(0.02))
