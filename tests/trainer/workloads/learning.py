"""A plain training loop, to test that a workload learns without the engine."""

from typing import Any

import keras
import tensorflow as tf

from trainer.workloads.protocol import Shard, Workload

STEPS_PER_CALL = 50


def train(workload: Workload, model: keras.Model, steps: int) -> None:
    """Train for `steps`, a multiple of 50, in batches of 100."""
    optimizer = workload.optimizer()
    optimizer.build(model.trainable_variables)
    batches = iter(workload.train_data(Shard(batch_size=100, seed=0)))

    @tf.function
    def run() -> None:
        for _ in tf.range(STEPS_PER_CALL):
            inputs, targets = next(batches)
            with tf.GradientTape() as tape:
                loss = workload.loss(targets, model(inputs, training=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    for _ in range(steps // STEPS_PER_CALL):
        run()


def accuracy(workload: Workload, model: keras.Model) -> float:
    """Return the accuracy on the whole held-out set."""
    right = examples = 0.0
    for inputs, targets in workload.eval_data(1000):
        metrics: dict[str, Any] = workload.metrics(targets, model(inputs, training=False))
        right += float(metrics["accuracy"]) * len(targets)
        examples += len(targets)
    return right / examples
