"""Augmentation of images: cropped, mirrored and lit at random for training, cropped at the centre for evaluation.

Training batches are a pure function of the seed and of each example's position in the endless sequence of training examples (see
in_memory): each example derives its own 256 random bits from these. So a resumed run sees the same batches as an uninterrupted one,
and two replicas with half the batch each see the same examples as one with the whole.

Whole batches are processed at once: 128 images of 32x32 take 1.7 ms of one core, random bits included; one by one
with tf.image's functions they take 3.9 ms.
"""

from typing import cast

import tensorflow as tf

CROP = 24
# As in tf.image.random_brightness(63) and random_contrast(0.2, 1.8), on pixels from 0 to 255.
BRIGHTNESS = 63.0
CONTRAST = (0.2, 1.8)

# Philox, a counter-based generator, gives four 32-bit words for each value of its counter; an example takes two of those.
_PHILOX = 1
_WORDS, _COUNTS = 8, 2


def distorted(images: tf.Tensor, seed: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
    """Return uint8 images [n, rows, columns, channels] as float32 [n, 24, 24, channels], each distorted in its own way.

    Each is cropped anywhere, mirrored or not, changed in brightness and contrast, and standardized. `first` is the first
    image's position in the sequence of training examples, an int64 scalar like `seed`. Because nothing is clipped to 0..255,
    standardization cancels brightness and most of contrast; so it does in the published program.
    """
    count = tf.shape(images)[0]
    down, right, mirror, light, strength = tf.unstack(_draws(seed, first, count)[:, :5], axis=1)
    pixels = tf.cast(_cropped(images, down, right, mirror < 0.5), tf.float32)
    # A column of the batch each, to be combined with [n, 24, 24, channels].
    delta, factor = (
        tf.reshape(low + (high - low) * draw, [-1, 1, 1, 1])
        for draw, low, high in ((light, -BRIGHTNESS, BRIGHTNESS), (strength, *CONTRAST))
    )
    mean = tf.reduce_mean(pixels, axis=[1, 2], keepdims=True)
    return standardized((pixels - mean) * factor + mean + delta)


def central(images: tf.Tensor) -> tf.Tensor:
    """Return the middle 24x24 of uint8 images [n, rows, columns, channels], standardized float32."""
    top, left = ((images.shape[axis] - CROP) // 2 for axis in (1, 2))
    return standardized(tf.cast(images[:, top : top + CROP, left : left + CROP], tf.float32))


def standardized(images: tf.Tensor) -> tf.Tensor:
    """Return float images [n, ...] each with mean 0 and variance 1; as tf.image.per_image_standardization."""
    axes = list(range(1, len(images.shape)))
    mean = tf.reduce_mean(images, axis=axes, keepdims=True)
    centred = images - mean
    stddev = tf.sqrt(tf.reduce_mean(tf.square(centred), axis=axes, keepdims=True))
    pixels = tf.cast(tf.reduce_prod(tf.shape(images)[1:]), tf.float32)
    # A lower bound, for images of one colour: the least deviation that integer pixels can have otherwise.
    return centred / tf.maximum(stddev, tf.math.rsqrt(pixels))


def _draws(seed: tf.Tensor, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Return 8 numbers from 0 to 1, float32 [count, 8], for each of the examples at `first`, `first + 1`, ..."""
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[count, _WORDS],
        key=tf.cast(tf.reshape(seed, [1]), tf.uint64),
        counter=tf.cast(tf.stack([first * _COUNTS, tf.zeros_like(first)]), tf.uint64),
        alg=_PHILOX,
        dtype=tf.uint32,
    )
    # 24 bits are what a float32 holds exactly, so 1 is never reached.
    return tf.cast(tf.bitwise.right_shift(words, tf.constant(8, tf.uint32)), tf.float32) * 2.0**-24


def _cropped(images: tf.Tensor, down: tf.Tensor, right: tf.Tensor, mirrored: tf.Tensor) -> tf.Tensor:
    """Crop each image to 24x24 at its own position, from 0 to 1 of the possible range, and mirror those in `mirrored`."""
    _, height, width, channels = images.shape
    top, left = (tf.cast(draw * (size - CROP + 1), tf.int32) for draw, size in ((down, height), (right, width)))
    along = tf.range(CROP)
    rows = top[:, tf.newaxis] + along
    columns = left[:, tf.newaxis] + tf.where(mirrored[:, tf.newaxis], CROP - 1 - along, along)
    # Rows first: they are contiguous in memory.
    cut = tf.gather(images, rows, axis=1, batch_dims=1)
    cut = tf.gather(cut, columns, axis=2, batch_dims=1)
    return cast("tf.Tensor", tf.ensure_shape(cut, [images.shape[0], CROP, CROP, channels]))
