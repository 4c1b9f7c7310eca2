"""Parameter-server training with a coordinator: the chief schedules steps, workers compute them, a ps holds the variables.

TF_CONFIG says which task this is. RUN_DIR says where the chief writes.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

STEPS = 600
STEPS_PER_ROUND = 200  # between two lines of progress and two checkpoints
BATCH = 64
FEATURES, CLASSES = 20, 10
CHIEF_EXIT_TIME = 3  # seconds for the chief to exit: it still holds connections


def examples(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Create points around one centre for each class; the centres are the same for each seed."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    random = np.random.default_rng(seed)
    labels = random.integers(CLASSES, size=count)
    points = centres[labels] + random.normal(scale=0.7, size=(count, FEATURES))
    return points.astype("float32"), labels.astype("int64")


def stop_file(role: str, index: int) -> Path:
    """Return the file, on the task's own machine, by which the chief informs a ps or worker that the work is done."""
    run = os.environ.get("RUN_DIR", "custom-ps").strip("/").replace("/", "-")
    return Path(tempfile.gettempdir()) / f"{run}-{role}-{index}.stop"


def serve(resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver) -> None:
    """Be a ps or a worker: run what the chief sends, until it reports that the work is done."""
    stop = stop_file(resolver.task_type, resolver.task_id)
    stop.unlink(missing_ok=True)  # of an earlier run
    # The variable keeps the server alive: one without references is destroyed.
    _server = tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc")
    print(f"{resolver.task_type}-{resolver.task_id}: listening", flush=True)
    while not stop.exists():
        time.sleep(0.2)
    stop.unlink(missing_ok=True)
    time.sleep(CHIEF_EXIT_TIME)


def stop_servers(cluster: tf.train.ClusterSpec) -> None:
    """Ask each ps and worker to stop. They share no disk, so a TensorFlow operation on each task writes its file."""
    for role in ("worker", "ps"):
        for index in range(cluster.num_tasks(role)):
            with tf.device(f"/job:{role}/replica:0/task:{index}/device:CPU:0"):
                tf.io.write_file(str(stop_file(role, index)), "done")


def coordinate(resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver) -> None:
    """Be the chief: create the model on the ps, schedule steps on the workers, save and evaluate."""
    run_dir = Path(os.environ.get("RUN_DIR", "runs/custom-ps"))
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    with strategy.scope():  # variables created here are on the ps
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(CLASSES)])
        optimizer = keras.optimizers.Adam(0.003)
        optimizer.build(model.trainable_variables)
        # Counts the steps of all workers. (Keras's own `iterations` reads, then writes, and so loses updates of concurrent workers.)
        steps_done = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps_done")
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def batches() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(examples(20_000, seed=1)).shuffle(20_000).repeat().batch(BATCH)

    @tf.function
    def step(iterator: tf.data.Iterator) -> tf.Tensor:
        def of_replica(points: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_of(labels, model(points, training=True))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
            steps_done.assign_add(1)
            return loss

        return strategy.run(of_replica, args=next(iterator))

    # Each worker creates its own data set, and keeps its position in it.
    iterator = iter(coordinator.create_per_worker_dataset(batches))

    # The chief writes the files, so the ps needs no shared disk.
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, steps_done=steps_done)
    options = tf.train.CheckpointOptions(experimental_io_device=f"/job:{resolver.task_type}/replica:0/task:0/device:CPU:0")
    manager = tf.train.CheckpointManager(checkpoint, str(run_dir / "checkpoints"), max_to_keep=3)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint, options)
        print(f"chief: continuing from {manager.latest_checkpoint}", flush=True)

    # When asked to stop, save after the current round, and exit with 143: not done, to be started again.
    stop_signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stop_signals.append(number))

    started = time.monotonic()
    while (done := int(steps_done.numpy())) < STEPS:
        losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(min(STEPS_PER_ROUND, STEPS - done))]
        coordinator.join()  # raises the error of a worker
        done = int(steps_done.numpy())
        manager.save(checkpoint_number=done, options=options)
        print(f"chief: step {done}/{STEPS}, loss {float(losses[-1].fetch()):.3f}", flush=True)
        if stop_signals and done < STEPS:
            os._exit(143)  # not by sys.exit: threads of the coordinator wait for servers, which are stopped too
    seconds = time.monotonic() - started

    points, labels = examples(2_000, seed=2)
    accuracy = float(np.mean(np.argmax(model(points), axis=1) == labels))
    print(f"chief: trained in {seconds:.1f} s, test accuracy {accuracy:.3f}", flush=True)
    stop_servers(resolver.cluster_spec())


def main() -> int:
    """Run the role that TF_CONFIG gives."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if not resolver.cluster_spec().jobs:
        print("TF_CONFIG is not set: start this on a cluster, with `launcher up examples/custom-ps.yaml`", file=sys.stderr)
        return 2
    if resolver.task_type in {"ps", "worker"}:
        serve(resolver)
    else:
        coordinate(resolver)
    return 0


if __name__ == "__main__":
    sys.exit(main())
