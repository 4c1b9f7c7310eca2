"""The way before TensorFlow 2: 1 ps and 2 workers, each a process that builds its own copy of the graph.

Between-graph replication with `tf.compat.v1`: `replica_device_setter` puts the variables on the ps,
each worker computes gradients and applies them at once; the global step counts all workers' steps.
With `--sync 1` an update is the mean of a gradient of each, by `SyncReplicasOptimizer`; the global step counts updates.
Started without `--job` it starts the three processes and waits for the workers.
"""

import json
import sys
from typing import Any

from benchmarks import task, tf1_session
from benchmarks.processes import free_addresses, started

MARK_EVERY = 20  # a worker's steps between two looks at the clock


def run_all(steps: int, sync: int) -> int:
    """Start ps and workers, wait for the workers, end all; return the first exit code that is not 0."""
    ps, *workers = free_addresses(1 + task.WORKERS)
    options = ["--steps", str(steps), "--sync", str(sync), "--cluster", json.dumps({"ps": [ps], "worker": workers})]
    tasks = [("ps", 0), *(("worker", index) for index in range(task.WORKERS))]
    with started("benchmarks.tf1_ps", tasks, options) as (_, *processes):
        # Synchronous workers wait for each other: only the one that measures ends by itself.
        codes = [process.wait(task.DEADLINE) for process in (processes[:1] if sync else processes)]
        return next((code for code in codes if code), 0)


def build(tf: Any, images: Any, labels: Any, *, sync: bool) -> tuple[Any, Any, Any, Any]:
    """Return the operations for loss, global step and one training step, and the optimizer that they use."""
    v1 = tf.compat.v1

    def weights(name: str, shape: list[int], stddev: float) -> Any:
        return v1.get_variable(name, shape, initializer=v1.truncated_normal_initializer(stddev=stddev))

    def biases(name: str, size: int) -> Any:
        return v1.get_variable(name, [size], initializer=v1.zeros_initializer())

    pixels = tf.cast(images, tf.float32) / 255
    hidden_sum = tf.matmul(pixels, weights("w1", [task.PIXELS, task.HIDDEN], task.STDDEV_HIDDEN)) + biases("b1", task.HIDDEN)
    logits = tf.matmul(tf.nn.relu(hidden_sum), weights("w2", [task.HIDDEN, task.CLASSES], task.STDDEV_OUT)) + biases("b2", task.CLASSES)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    step = v1.train.get_or_create_global_step()
    optimizer = v1.train.AdamOptimizer(task.LEARNING_RATE)
    if sync:
        optimizer = v1.train.SyncReplicasOptimizer(optimizer, replicas_to_aggregate=task.WORKERS, total_num_replicas=task.WORKERS)
    return loss, step, optimizer.minimize(loss, global_step=step), optimizer


def work(tf: Any, steps: int, index: int, cluster: dict[str, list[str]], stopwatch: task.Stopwatch, *, sync: bool) -> None:
    """Train as worker `index` until the global step is `steps`; worker 0 measures."""
    v1 = tf.compat.v1
    filters = v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
    server = v1.train.Server(cluster, job_name="worker", task_index=index, config=filters)
    device = f"/job:worker/task:{index}"
    with v1.Graph().as_default(), v1.device(v1.train.replica_device_setter(worker_device=device, cluster=cluster)):
        digits = tf.data.Dataset.from_tensor_slices(task.training_set()).shuffle(20_000, seed=index).repeat().batch(task.BATCH).prefetch(2)
        iterator = v1.data.make_initializable_iterator(digits)
        images, labels = iterator.get_next()
        loss, global_step, train, optimizer = build(tf, images, labels, sync=sync)
        hooks = [optimizer.make_session_run_hook(is_chief=index == 0)] if sync else []
        start = v1.train.Scaffold(local_init_op=v1.group(v1.local_variables_initializer(), iterator.initializer))
        step = local = 0
        with tf1_session.session(tf, server.target, start, filters, index, hooks) as session:
            # The first worker would wait for a synchronous one that ends: so the end of the first one ends both.
            while step < steps or (sync and index):
                step, value, _ = session.run([global_step, loss, train])
                if index == 0 and local % MARK_EVERY == 0:
                    stopwatch.mark(int(step), float(value))
                local += 1
    if index == 0:
        stopwatch.print()


def main() -> None:
    """Be one task, or start them all."""
    options = task.parse_arguments(__doc__, job="", index=0, cluster="", sync=0)
    if not options.job:
        sys.exit(run_all(options.steps, options.sync))
    stopwatch = task.Stopwatch(options.steps)
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    cluster = json.loads(options.cluster)
    if options.job == "ps":
        tf.compat.v1.train.Server(cluster, job_name="ps", task_index=0).join()
    work(tf, options.steps, options.index, cluster, stopwatch, sync=bool(options.sync))


if __name__ == "__main__":
    main()
