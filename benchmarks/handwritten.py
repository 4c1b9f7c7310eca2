"""The baseline: one process, a training loop written by hand in a tf.function, with nothing around it.

`--data pipeline` feeds it as the tutorials do, by tf.data; `--data resident` draws batches inside the function,
from the digits held as a constant, which is the least that feeding can cost.
"""

from collections.abc import Callable

import keras
import tensorflow as tf

from benchmarks import loop_by_hand, task

STEPS_PER_CALL = 50


def build() -> tuple[keras.Model, keras.optimizers.Optimizer]:
    """Return the model and its optimizer, built."""

    def initializer(stddev: float) -> keras.initializers.Initializer:
        return keras.initializers.TruncatedNormal(stddev=stddev)

    model = keras.Sequential(
        [
            keras.Input((task.PIXELS,), dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Dense(task.HIDDEN, activation="relu", kernel_initializer=initializer(task.STDDEV_HIDDEN)),
            keras.layers.Dense(task.CLASSES, kernel_initializer=initializer(task.STDDEV_OUT)),
        ]
    )
    optimizer = keras.optimizers.Adam(task.LEARNING_RATE)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def pipeline() -> Callable[[], tuple[tf.Tensor, tf.Tensor]]:
    """Return what gives the next batch of a shuffled, endless tf.data pipeline."""
    images, labels = task.training_set()
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images)).repeat().batch(task.BATCH, drop_remainder=True)
    iterator = iter(dataset.prefetch(2))
    return lambda: next(iterator)


def resident() -> Callable[[], tuple[tf.Tensor, tf.Tensor]]:
    """Return what draws a batch from constants, with replacement."""
    images, labels = (tf.constant(array) for array in task.training_set())

    def draw() -> tuple[tf.Tensor, tf.Tensor]:
        picked = tf.random.uniform([task.BATCH], maxval=images.shape[0], dtype=tf.int32)
        return tf.gather(images, picked), tf.gather(labels, picked)

    return draw


def main() -> None:
    """Train and print the result."""
    options = task.parse_arguments(__doc__, data="pipeline", precision="float32")
    stopwatch = task.Stopwatch(options.steps)
    keras.config.set_dtype_policy(options.precision)
    batch = {"pipeline": pipeline, "resident": resident}[options.data]()
    model, optimizer = build()
    loop_by_hand.train(model, optimizer, batch, stopwatch, precision=options.precision, steps_per_call=STEPS_PER_CALL)


if __name__ == "__main__":
    main()
