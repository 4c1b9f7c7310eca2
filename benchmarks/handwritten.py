"""The baseline: one process, a training loop written by hand in a tf.function, with nothing around it.

`--data pipeline` feeds it as the tutorials do, by tf.data; `--data resident` draws batches inside the function,
from the digits held as a constant, which is the least that feeding can cost.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from benchmarks import task

STEPS_PER_CALL = 50


def build() -> tuple[keras.Model, keras.optimizers.Optimizer]:
    """Return the model and its optimizer, built."""

    def start(stddev: float) -> keras.initializers.Initializer:
        return keras.initializers.TruncatedNormal(stddev=stddev)

    model = keras.Sequential(
        [
            keras.Input((task.PIXELS,), dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Dense(task.HIDDEN, activation="relu", kernel_initializer=start(task.STDDEV_HIDDEN)),
            keras.layers.Dense(task.CLASSES, kernel_initializer=start(task.STDDEV_OUT)),
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
    options = task.arguments(__doc__, data="pipeline", precision="float32")
    stopwatch = task.Stopwatch(options.steps)
    keras.config.set_dtype_policy(options.precision)
    batch = {"pipeline": pipeline, "resident": resident}[options.data]()
    model, optimizer = build()
    if options.precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizer.build(model.trainable_variables)

    @tf.function
    def train(steps: Any) -> tf.Tensor:
        loss = tf.constant(0.0)
        for _ in tf.range(steps):
            images, labels = batch()
            with tf.GradientTape() as tape:
                logits = tf.cast(model(images, training=True), tf.float32)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
                scaled = optimizer.scale_loss(loss)
            optimizer.apply(tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
        return loss

    step = 0
    while step < options.steps:
        # The first call is one step, so that the time to the first step is just that.
        count = 1 if step == 0 else min(STEPS_PER_CALL, options.steps - step)
        loss = float(train(tf.constant(count)))
        step += count
        stopwatch.mark(step, loss)
    stopwatch.print()


if __name__ == "__main__":
    main()
