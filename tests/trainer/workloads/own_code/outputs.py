"""A model with two inputs and two outputs, each with its own loss and weight, from arrays with sample weights."""

import keras
import numpy as np


def _examples(count: int, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]:
    random = np.random.default_rng(seed)
    left, right = random.normal(size=(count, 3)), random.normal(size=(count, 2))
    total = left.sum(axis=1, keepdims=True) + right.sum(axis=1, keepdims=True)
    return {"left": left, "right": right}, {"total": total, "sign": (total > 0).astype(np.float32)}, random.uniform(0.5, 1.5, count)


def train_data() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]:
    return _examples(300, 1)


def eval_data() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]:
    return _examples(100, 2)


def model() -> keras.Model:
    inputs = {"left": keras.Input((3,), name="left"), "right": keras.Input((2,), name="right")}
    hidden = keras.layers.Dense(16, "tanh")(keras.layers.Concatenate()([inputs["left"], inputs["right"]]))
    outputs = {"total": keras.layers.Dense(1, name="total")(hidden), "sign": keras.layers.Dense(1, "sigmoid", name="sign")(hidden)}
    both = keras.Model(inputs, outputs)
    both.compile(
        keras.optimizers.Adam(0.03),
        loss={"total": "mse", "sign": "binary_crossentropy"},
        loss_weights={"total": 0.5, "sign": 2.0},
        metrics={"sign": ["accuracy"]},
        weighted_metrics={"total": ["mae"]},
    )
    return both
