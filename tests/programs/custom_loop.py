"""`MultiWorkerMirroredStrategy` with a custom loop, without Keras. Needs only TensorFlow.

Worker-0, or a chief, writes its checkpoint to RUN_DIR.
"""

import os
import sys
import tempfile
from pathlib import Path

import tensorflow as tf

STEPS = 40
BATCH = 32  # of each worker


def main() -> int:
    """Train a line whose slope is 2."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    has_chief = "chief" in resolver.cluster_spec().jobs
    is_chief = resolver.task_type == "chief" if has_chief else resolver.task_id == 0
    with strategy.scope():
        slope = tf.Variable(0.0)
        done = tf.Variable(0, dtype=tf.int64)

    batch = BATCH * strategy.num_replicas_in_sync
    numbers = tf.data.Dataset.from_tensor_slices(tf.random.stateless_normal([1024], seed=(1, 2))).repeat().batch(batch)

    @tf.function
    def step(iterator: tf.data.Iterator) -> tf.Tensor:
        def on_replica(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((slope * x - 2 * x) ** 2) / batch
            gradient = tf.distribute.get_replica_context().all_reduce("sum", tape.gradient(loss, slope))
            slope.assign_sub(0.1 * gradient)
            done.assign_add(1)
            return loss

        return strategy.reduce("SUM", strategy.run(on_replica, args=(next(iterator),)), axis=None)

    iterator = iter(strategy.experimental_distribute_dataset(numbers))
    for number in range(1, STEPS + 1):
        loss = step(iterator)
        if number % 10 == 0:
            print(f"{resolver.task_type}-{resolver.task_id}: step {number}, loss {loss:.6f}", flush=True)
    # All workers save, as in TensorFlow's guide; only the chief's checkpoint is kept.
    with tempfile.TemporaryDirectory() as scratch:
        directory = str(Path(os.environ["RUN_DIR"], "checkpoints")) if is_chief else scratch
        tf.train.CheckpointManager(tf.train.Checkpoint(slope=slope, done=done), directory, 2).save()
    print(f"{resolver.task_type}-{resolver.task_id}: slope {slope.numpy():.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
