"""A module of a user, whose held-out data was forgotten."""

import keras
import numpy as np


def model() -> keras.Model:
    """Return a compiled model."""
    network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    network.compile(optimizer="sgd", loss="mse")
    return network


def train_data() -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets."""
    return np.zeros((8, 2)), np.zeros((8, 1))
