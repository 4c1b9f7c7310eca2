"""Rows are updated by the formulas of Keras's optimizers: if every row has a gradient, to the same numbers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.embeddings import row_updates
from trainer.workloads.errors import WorkloadError

ROWS, DIMENSION, STEPS = 6, 3, 5

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "sgd, weight decay": ("SGD", {"weight_decay": 0.1}),
    "adagrad": ("Adagrad", {}),
    "adagrad from zero": ("Adagrad", {"initial_accumulator_value": 0.0, "epsilon": 1e-3}),
    "ftrl": (
        "Ftrl",
        {"l1_regularization_strength": 0.01, "l2_regularization_strength": 0.02, "l2_shrinkage_regularization_strength": 0.03, "beta": 0.1},
    ),
    "rmsprop": ("RMSprop", {}),
    "rmsprop, centered": ("RMSprop", {"momentum": 0.5, "centered": True}),
    "adam": ("Adam", {}),
    "amsgrad": ("Adam", {"amsgrad": True}),
    "adamw": ("AdamW", {"weight_decay": 0.1}),
}


def create(name: str) -> Any:
    kind, arguments = OPTIMIZERS[name]
    return getattr(keras.optimizers, kind)(learning_rate=0.1, **arguments)


def initial_rows() -> Any:
    return np.random.default_rng(0).normal(size=(ROWS, DIMENSION)).astype(np.float32)


def gradients(step: int) -> Any:
    return np.random.default_rng(step + 1).normal(size=(ROWS, DIMENSION)).astype(np.float32)


class Rows:
    """A variable and its slots; `update` changes some of their rows."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._rule = optimizer, row_updates.rule_of(optimizer, ["table"])
        self.variable = tf.Variable(initial_rows())
        self.slots = {name: tf.Variable(tf.fill([ROWS, DIMENSION], value)) for name, value in self._rule.slots(optimizer).items()}

    def update(self, indices: list[int], step: int) -> None:
        rows = row_updates.RowHandle(self.variable, self.slots, tf.constant(indices))
        rate = tf.constant(self._optimizer.learning_rate.numpy())
        gradient, decays = tf.constant(gradients(step)[indices]), row_updates.decays(self._optimizer)
        row_updates.update(self._rule, self._optimizer, rows, gradient, rate, tf.constant(step + 1.0), decays=decays)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_updates_of_all_rows_equal_those_of_keras(name: str) -> None:
    rows, whole, optimizer = Rows(create(name)), keras.Variable(initial_rows()), create(name)
    for step in range(STEPS):
        rows.update(list(range(ROWS)), step)
        optimizer.apply([tf.constant(gradients(step))], [whole])
    np.testing.assert_allclose(rows.variable.numpy(), whole.numpy(), rtol=1e-5, atol=1e-5)
    keras_slots = {tuple(np.asarray(v).ravel().round(4)) for v in optimizer.variables}
    assert all(tuple(slot.numpy().ravel().round(4)) in keras_slots for slot in rows.slots.values())


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_rows_that_are_not_used_do_not_change_nor_do_their_slots(name: str) -> None:
    rows = Rows(create(name))
    before = [value.numpy() for value in (rows.variable, *rows.slots.values())]
    for step in range(STEPS):
        rows.update([1, 4], step)
    for old, value in zip(before, (rows.variable, *rows.slots.values()), strict=True):
        np.testing.assert_array_equal(np.delete(value.numpy(), [1, 4], 0), np.delete(old, [1, 4], 0))
        assert (value.numpy()[[1, 4]] != old[[1, 4]]).any()


@pytest.mark.parametrize(
    "optimizer, reason",
    [
        (keras.optimizers.Nadam, "not Nadam"),
        (partial(keras.optimizers.Adam, use_ema=True), "use_ema"),
        (partial(keras.optimizers.Adam, clipnorm=1.0), "clipnorm"),
        (partial(keras.optimizers.SGD, gradient_accumulation_steps=2), "gradient_accumulation_steps"),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "not LossScaleOptimizer"),
    ],
)
def test_an_optimizer_that_cannot_update_rows_is_refused_with_a_remedy(optimizer: Callable[[], Any], reason: str) -> None:
    with pytest.raises(WorkloadError, match=r"large embedding layers on parameter servers \(users\).*train\.embeddings\.whole") as raised:
        row_updates.rule_of(optimizer(), ["users"])
    assert reason in str(raised.value)


def test_layers_that_are_excluded_by_name_do_not_decay() -> None:
    optimizer = keras.optimizers.AdamW(weight_decay=0.1)
    assert row_updates.decays(optimizer)
    optimizer.exclude_from_weight_decay(var_names=["embeddings"])
    assert not row_updates.decays(optimizer)
