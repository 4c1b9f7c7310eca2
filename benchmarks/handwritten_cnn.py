"""The network of cifar10 in one process: a training loop written by hand in a tf.function, with nothing around it.

Layers, loss, weight decay, augmentation, optimizer and moving averages are those of docs/workloads.md, written with what
Keras and TensorFlow have for each: tf.image's functions on each picture, tf.nn.local_response_normalization, Keras's
averages of variables.
"""

from typing import Any

import keras
import tensorflow as tf

from benchmarks import loop_by_hand, task
from trainer.workloads import cifar10_data

STEPS_PER_CALL = 10
SIDE = 24
WEIGHT_DECAY = 0.004
LEARNING_RATE = 0.1
MOVING_AVERAGE = 0.9999


def build() -> tuple[keras.Model, keras.optimizers.Optimizer]:
    """Return the model and its optimizer, built."""
    layers = keras.layers

    def conv(bias: float) -> keras.layers.Layer:
        initializer = keras.initializers.TruncatedNormal(stddev=0.05)
        return layers.Conv2D(
            64, 5, padding="same", activation="relu", kernel_initializer=initializer, bias_initializer=keras.initializers.Constant(bias)
        )

    def dense(units: int) -> keras.layers.Layer:
        return layers.Dense(
            units,
            activation="relu",
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.04),
            kernel_regularizer=keras.regularizers.L2(WEIGHT_DECAY / 2),
            bias_initializer=keras.initializers.Constant(0.1),
        )

    def normalise() -> keras.layers.Layer:
        def local_response(x: tf.Tensor) -> tf.Tensor:  # TensorFlow has it for float32 alone, on GPUs
            return tf.cast(tf.nn.local_response_normalization(tf.cast(x, tf.float32), 4, bias=1.0, alpha=0.001 / 9, beta=0.75), x.dtype)

        return layers.Lambda(local_response)

    def pool() -> keras.layers.Layer:
        return layers.MaxPooling2D(3, 2, padding="same")

    initializer = keras.initializers.TruncatedNormal(stddev=1 / 192)
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, cifar10_data.CHANNELS)),
            conv(0.0),
            pool(),
            normalise(),
            conv(0.1),
            normalise(),
            pool(),
            layers.Flatten(),
            dense(384),
            dense(192),
            layers.Dense(cifar10_data.CLASSES, kernel_initializer=initializer),
        ]
    )
    optimizer = keras.optimizers.SGD(LEARNING_RATE, use_ema=True, ema_momentum=MOVING_AVERAGE)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def pipeline(batch: int) -> Any:
    """Return the iterator of a shuffled, endless tf.data pipeline of distorted pictures."""
    train = cifar10_data.load("synthetic").train

    def distort(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.image.random_crop(tf.cast(image, tf.float32), [SIDE, SIDE, cifar10_data.CHANNELS])
        image = tf.image.random_flip_left_right(image)
        image = tf.image.random_brightness(image, max_delta=63)
        image = tf.image.random_contrast(image, lower=0.2, upper=1.8)
        return tf.image.per_image_standardization(image), label

    pictures = tf.data.Dataset.from_tensor_slices((train.images, train.labels)).shuffle(len(train.labels)).repeat()
    return iter(pictures.map(distort, num_parallel_calls=tf.data.AUTOTUNE).batch(batch, drop_remainder=True).prefetch(2))


def main() -> None:
    """Train and print the result."""
    options = task.parse_arguments(__doc__, batch=task.CNN_BATCH, precision="float32")
    stopwatch = task.Stopwatch(options.steps)
    keras.config.set_dtype_policy(options.precision)
    iterator = pipeline(options.batch)
    model, optimizer = build()
    loop_by_hand.train(model, optimizer, lambda: next(iterator), stopwatch, precision=options.precision, steps_per_call=STEPS_PER_CALL)


if __name__ == "__main__":
    main()
