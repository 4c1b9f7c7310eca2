"""Local response normalization: each channel is divided by a function of its neighbours at the same position."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf


def _normalized(values: tf.Tensor, weights: np.ndarray, bias: float) -> tf.Tensor:
    """Return values [n, channels] times (bias + values^2 weights) ** -0.75; weights [channels, channels] are symmetric."""
    band = tf.constant(weights, values.dtype)

    # With s = bias + x^2 W and y = x s^-0.75, dx = dy s^-0.75 - 1.5 x ((dy y / s) W). Left to TensorFlow, the same takes
    # twice as many passes over the values.
    @tf.custom_gradient
    def normalize(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        scale = tf.matmul(tf.square(x), band) + tf.cast(bias, x.dtype)
        factor = tf.math.rsqrt(scale * tf.sqrt(scale))
        y = x * factor

        def gradient(dy: tf.Tensor) -> tf.Tensor:
            return dy * factor - x * tf.matmul(dy * y / scale, band * 1.5)

        return y, gradient

    return normalize(values)


@keras.saving.register_keras_serializable(package="trainer")
class LocalResponse(keras.layers.Layer):
    """x / (bias + alpha * sum of squares of the 2 * radius + 1 channels around) ** 0.75, as tf.nn.local_response_normalization.

    The sums are one product with a band matrix, and the power is two square roots: TensorFlow's own kernel loops over the
    channels and takes a power of each; on CPUs its gradient is the slowest part of a whole network.
    """

    def __init__(self, radius: int = 4, bias: float = 1.0, alpha: float = 0.001 / 9, **options: Any) -> None:
        super().__init__(**options)
        self.radius, self.bias, self.alpha = radius, bias, alpha

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return inputs [..., channels] normalized; computed in at least float32, as squares overflow float16."""
        channels = inputs.shape[-1]
        channel = np.arange(channels)
        is_neighbour = abs(channel[:, np.newaxis] - channel) <= self.radius
        values = tf.reshape(inputs, [-1, channels])
        precise = tf.cast(values, tf.float32) if values.dtype.size < tf.float32.size else values
        return tf.reshape(tf.cast(_normalized(precise, is_neighbour * self.alpha, self.bias), inputs.dtype), tf.shape(inputs))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the shape of the inputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate the layer."""
        return {**super().get_config(), "radius": self.radius, "bias": self.bias, "alpha": self.alpha}
