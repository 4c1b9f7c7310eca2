"""Compiled Keras models as users write them, with a Dataset to train on and arrays to evaluate on."""

import keras
import numpy as np
import tensorflow as tf

EXAMPLES = 401


def _points(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    points = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    return points, (points.sum(axis=1) > 0).astype(np.float32)


def train_data(seed: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(_points(EXAMPLES, seed))


def eval_data() -> tuple[np.ndarray, np.ndarray]:
    return _points(150, 99)


def model(units: int = 8) -> keras.Model:
    # No input shape: it follows from the data.
    layers = [keras.layers.Dense(units, "relu"), keras.layers.Dense(1, "sigmoid", kernel_regularizer="l2")]
    plain = keras.Sequential(layers)
    plain.compile(keras.optimizers.Adam(0.02), loss="binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])
    return plain


def random() -> keras.Model:
    layers = [
        keras.Input((4,)),
        keras.layers.Dense(8),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(1, "sigmoid"),
    ]
    noisy = keras.Sequential(layers)
    noisy.compile(keras.optimizers.SGD(0.2, momentum=0.9), loss=keras.losses.BinaryCrossentropy(), metrics=[keras.metrics.binary_accuracy])
    return noisy
