"""The shared part of the programs written by hand: a training loop in a tf.function, with nothing around it."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from benchmarks import task


def train(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    batch: Callable[[], tuple[tf.Tensor, tf.Tensor]],
    stopwatch: task.Stopwatch,
    *,
    precision: str,
    steps_per_call: int,
) -> None:
    """Train for the stopwatch's steps, `steps_per_call` in one call of the function, and print the result.

    The loss is the mean softmax cross-entropy plus the layers' own; with `precision` mixed_float16 it is scaled.
    """
    if precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizer.build(model.trainable_variables)

    @tf.function
    def run(steps: Any) -> tf.Tensor:
        loss = tf.constant(0.0)
        for _ in tf.range(steps):
            images, labels = batch()
            with tf.GradientTape() as tape:
                logits = tf.cast(model(images, training=True), tf.float32)
                cross_entropy = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
                loss = tf.add_n([cross_entropy, *(tf.cast(own, tf.float32) for own in model.losses)])
                scaled = optimizer.scale_loss(loss)
            optimizer.apply(tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
        return loss

    step = 0
    while step < stopwatch.steps:
        # The first call is one step, so that the time to the first step is just that.
        count = 1 if step == 0 else min(steps_per_call, stopwatch.steps - step)
        loss = float(run(tf.constant(count)))
        step += count
        stopwatch.mark(step, loss)
    stopwatch.print()
