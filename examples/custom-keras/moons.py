"""Classifies the points of two half moons: a compiled Keras model, and its training and held-out examples.

`params` of the spec are passed as arguments of the same name, to each function that takes them.
"""

import keras
import numpy as np


def model(units: int = 32) -> keras.Model:
    """Return the compiled model: loss, optimizer and metrics are all that the trainer needs to know."""
    moons = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(units, "relu"), keras.layers.Dense(units, "relu"), keras.layers.Dense(1, "sigmoid")]
    )
    moons.compile(optimizer=keras.optimizers.Adam(0.01), loss="binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])
    return moons


def train_data(seed: int, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Return all training examples, [n, 2] and [n]; the trainer shuffles and shards them."""
    return _moons(4000, noise, seed)


def eval_data(noise: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Return the held-out examples."""
    return _moons(1000, noise, seed=12345)


def _moons(count: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    angle, label = random.uniform(0, np.pi, count), random.integers(0, 2, count)
    points = np.stack([np.cos(angle) + label, np.sin(angle) * (1 - 2 * label) + 0.5 * label], axis=1)
    return (points + random.normal(0, noise, points.shape)).astype(np.float32), label.astype(np.float32)
