"""Messages between workers and parameter servers: numbers and tensors in one vector of bytes, so that they travel in one go."""

from collections.abc import Sequence

import tensorflow as tf


def write(numbers: Sequence[tf.Tensor], tensor: tf.Tensor) -> tf.Tensor:
    """Return uint8 [bytes]: the int32 scalars `numbers`, then the elements of `tensor`."""
    header = tf.bitcast(tf.stack(numbers), tf.uint8)
    return tf.concat([tf.reshape(header, [-1]), tf.reshape(tf.bitcast(tensor, tf.uint8), [-1])], 0)


def numbers(message: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Return the `count` int32 scalars that a message begins with."""
    return list(tf.unstack(tf.bitcast(tf.reshape(message[: 4 * count], [count, 4]), tf.int32)))


def tensor(message: tf.Tensor, count: int, dtype: tf.DType, shape: Sequence[int]) -> tf.Tensor:
    """Return the tensor that follows `count` numbers."""
    elements = tf.reshape(message[4 * count :], [-1, dtype.size])
    return tf.reshape(tf.bitcast(elements, dtype), shape)
