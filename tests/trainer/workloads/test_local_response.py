"""Local response normalization equals TensorFlow's own, forwards and backwards."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.workloads.local_response import LocalResponse


@pytest.mark.parametrize("channels", [3, 16])
@pytest.mark.parametrize("alpha", [0.001 / 9, 0.5])
def test_values_and_gradients_are_those_of_tensorflows_kernel(channels: int, alpha: float) -> None:
    inputs = tf.constant(np.random.default_rng(2).normal(0, 3, (2, 4, 5, channels)), tf.float32)
    layer = LocalResponse(alpha=alpha)
    results = []
    for compute in (layer, lambda x: tf.nn.local_response_normalization(x, 4, 1.0, alpha, 0.75)):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = compute(inputs)
            loss = tf.reduce_sum(outputs * tf.sin(inputs))
        results.append((outputs, tape.gradient(loss, inputs)))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_half_precision_keeps_its_range() -> None:
    layer = LocalResponse(alpha=1.0, dtype="mixed_float16")
    values = layer(tf.constant([[300.0, 0.0]]))
    assert values.dtype == tf.float16
    np.testing.assert_allclose(values, [[300 * (1 + 300**2) ** -0.75, 0]], rtol=1e-2)


def test_it_is_saved_and_loaded_with_a_model(tmp_path: object) -> None:
    model = keras.Sequential([keras.Input((2, 2, 4)), LocalResponse(radius=1, alpha=0.3)])
    model.save(f"{tmp_path}/model.keras")
    inputs = np.ones((1, 2, 2, 4), np.float32)
    np.testing.assert_array_equal(keras.models.load_model(f"{tmp_path}/model.keras")(inputs), model(inputs))
