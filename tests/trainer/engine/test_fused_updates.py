"""The fused update equals Keras's own."""

from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.engine import fused_updates


def trained(make: Any, apply: Any, *, of_rows: bool, steps: int = 25) -> list[np.ndarray]:
    """Return all variables after updates with dense gradients, or with one of the rows of an embedding layer, one of them used twice."""
    keras.utils.set_random_seed(1)
    variables = [keras.Variable(np.ones(shape, np.float32)) for shape in ((3, 2), (5, 2))]
    optimizer = make()
    optimizer.build(variables)
    random = np.random.default_rng(2)
    indices, shape = tf.constant([4, 1, 4]), tf.constant([5, 2])
    run = tf.function(lambda a, b: apply(optimizer, [a, tf.IndexedSlices(b, indices, shape) if of_rows else b], variables))
    for _ in range(steps):
        run(*(tf.constant(random.normal(size=shape).astype(np.float32)) for shape in ((3, 2), (3 if of_rows else 5, 2))))
    return [np.asarray(v.value) for v in (*variables, *optimizer.variables)]


SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)


@pytest.mark.parametrize(
    "make, of_rows",
    [
        pytest.param(lambda: keras.optimizers.Adam(0.01), False, id="adam"),
        pytest.param(lambda: keras.optimizers.Adam(SCHEDULE, beta_1=0.5, beta_2=0.9, epsilon=1e-3), False, id="adam-constants-schedule"),
        pytest.param(lambda: keras.optimizers.Adam(0.01), True, id="adam-rows"),
        pytest.param(lambda: keras.optimizers.Adagrad(SCHEDULE), True, id="adagrad-rows"),
        pytest.param(lambda: keras.optimizers.Adagrad(0.1, weight_decay=0.1), True, id="adagrad-rows-decay"),
    ],
)
def test_apply_equals_keras(make: Any, of_rows: bool) -> None:
    ours = trained(make, fused_updates.apply, of_rows=of_rows)
    keras_own = trained(make, lambda optimizer, gradients, variables: optimizer.apply(gradients, variables), of_rows=of_rows)
    for actual, expected in zip(ours, keras_own, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-6)


def test_the_fused_kernel_is_used_only_for_plain_adam() -> None:
    variables = [keras.Variable(np.ones(3, np.float32))]
    adam = partial(keras.optimizers.Adam, 0.1)
    assert fused_updates.fuses(adam(), variables)
    for optimizer in (
        adam(clipvalue=1.0),
        adam(clipnorm=0.1),
        adam(global_clipnorm=0.1),
        adam(amsgrad=True),
        adam(weight_decay=0.1),
        adam(use_ema=True),
        keras.optimizers.AdamW(0.1),
        keras.optimizers.SGD(0.1, momentum=0.9),
    ):
        assert not fused_updates.fuses(optimizer, variables)


def rows_updated(apply: Any, dtype: str = "float32", constraint: Any = None) -> tuple[list[np.ndarray], Any]:
    """Return a matrix and Adagrad's variables after two updates of only some rows, one of them given twice; and the optimizer."""
    matrix = keras.Variable(np.ones((5, 2)), dtype=dtype)
    matrix.constraint = constraint
    optimizer = keras.optimizers.Adagrad(SCHEDULE)
    optimizer.build([matrix])
    gradient = tf.IndexedSlices(tf.constant([[1.0, -2.0], [3.0, 9.0], [0.5, 40.0]]), tf.constant([4, 1, 4]), tf.constant([5, 2]))
    for _ in range(2):
        tf.function(lambda: apply(optimizer, [gradient], [matrix]))()
    return [np.asarray(tf.cast(v.value, tf.float32)) for v in (matrix, *optimizer.variables)], optimizer


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adagrad_updates_rows_without_keras_and_counts_the_step(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keras_own, _ = rows_updated(lambda optimizer, gradients, variables: optimizer.apply(gradients, variables), dtype)
    monkeypatch.setattr(keras.optimizers.Adagrad, "apply", None)
    ours, optimizer = rows_updated(fused_updates.apply, dtype)
    assert int(optimizer.iterations) == 2
    for actual, expected in zip(ours, keras_own, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-5 if dtype == "float32" else 2e-2)


def test_the_constraint_of_a_matrix_is_applied() -> None:
    (matrix, *_), _ = rows_updated(fused_updates.apply, constraint=keras.constraints.MaxNorm(1.0, axis=1))
    assert np.linalg.norm(matrix, axis=1).max() <= 1.001
