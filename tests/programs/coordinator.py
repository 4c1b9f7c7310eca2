"""`ParameterServerStrategy` with a `ClusterCoordinator`, as TensorFlow's guide has it: ps and workers stay in `server.join()`.

Needs only TensorFlow, and a chief in the cluster, which writes its checkpoints to RUN_DIR.
"""

import os
import sys
from pathlib import Path

import tensorflow as tf

STEPS = 40


def coordinate(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Be the chief: schedule the steps of a line whose slope is 2, and wait for them with `join`."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        slope = tf.Variable(0.0)
        done = tf.Variable(0, dtype=tf.int64)

    def batches() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(tf.random.normal([512])).repeat().batch(32)

    @tf.function
    def step(iterator: tf.data.Iterator) -> None:
        def on_replica(x: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((slope * x - 2 * x) ** 2)
            slope.assign_sub(0.1 * tape.gradient(loss, slope))
            done.assign_add(1)

        strategy.run(on_replica, args=(next(iterator),))

    iterator = iter(coordinator.create_per_worker_dataset(batches))
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(slope=slope, done=done), str(Path(os.environ["RUN_DIR"], "checkpoints")), 2)
    for _ in range(STEPS):
        coordinator.schedule(step, args=(iterator,))
    coordinator.join()
    manager.save()
    print(f"chief: {done.numpy()} steps, slope {slope.numpy():.3f}", flush=True)


def main() -> int:
    """Be the task that TF_CONFIG names."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in {"worker", "ps"}:
        server = tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc")
        server.join()
    coordinate(resolver)
    return 0


if __name__ == "__main__":
    sys.exit(main())
