"""A model as Keras' guides subclass it: its `call` takes no `training`."""

import keras
import numpy as np


def _examples(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    inputs = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    return inputs, inputs.sum(axis=1, keepdims=True)


def train_data() -> tuple[np.ndarray, np.ndarray]:
    return _examples(300, 1)


def eval_data() -> tuple[np.ndarray, np.ndarray]:
    return _examples(100, 2)


@keras.saving.register_keras_serializable()
class Sum(keras.Model):
    """Learns to sum its inputs."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.hidden = keras.layers.Dense(8, "tanh")
        self.outcome = keras.layers.Dense(1)

    def call(self, inputs: object) -> object:
        return self.outcome(self.hidden(inputs))


def model() -> keras.Model:
    sum_model = Sum()
    sum_model.compile(keras.optimizers.Adam(0.03), loss="mse", metrics=["mae"])
    return sum_model
