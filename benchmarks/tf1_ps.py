"""The way before TensorFlow 2: 1 ps and 2 workers, each a process that builds its own copy of the graph.

Between-graph replication with `tf.compat.v1`: `replica_device_setter` puts the variables on the ps,
each worker computes gradients and applies them at once; the global step counts all workers' steps.
Started without `--job` it starts the three processes and waits for the workers.
"""

import contextlib
import json
import socket
import subprocess
import sys
from typing import Any

from benchmarks import task

DEADLINE = 300  # seconds that a whole run may take
MARK_EVERY = 20  # a worker's steps between two looks at the clock


def free_addresses(count: int) -> list[str]:
    """Return free loopback addresses; all are held until all are known, so they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for held in sockets:
            held.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{held.getsockname()[1]}" for held in sockets]


def run_all(steps: int) -> int:
    """Start ps and workers, wait for the workers, end the ps; return the first exit code that is not 0."""
    ps, *workers = free_addresses(1 + task.WORKERS)
    cluster = json.dumps({"ps": [ps], "worker": workers})

    def start(job: str, index: int) -> subprocess.Popen[bytes]:
        options = ["--steps", str(steps), "--job", job, "--index", str(index), "--cluster", cluster]
        return subprocess.Popen([sys.executable, "-m", "benchmarks.tf1_ps", *options])

    server = start("ps", 0)
    processes = [start("worker", index) for index in range(task.WORKERS)]
    try:
        codes = [process.wait(DEADLINE) for process in processes]
        return next((code for code in codes if code), 0)
    finally:
        for process in (server, *processes):
            process.kill()
            process.wait()


def build(tf: Any, images: Any, labels: Any) -> tuple[Any, Any, Any]:
    """Return the operations for loss, global step and one training step."""
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
    return loss, step, v1.train.AdamOptimizer(task.LEARNING_RATE).minimize(loss, global_step=step)


def work(tf: Any, steps: int, index: int, cluster: dict[str, list[str]], stopwatch: task.Stopwatch) -> None:
    """Train as worker `index` until the global step is `steps`; worker 0 measures."""
    v1 = tf.compat.v1
    filters = v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
    server = v1.train.Server(cluster, job_name="worker", task_index=index, config=filters)
    device = f"/job:worker/task:{index}"
    with v1.Graph().as_default(), v1.device(v1.train.replica_device_setter(worker_device=device, cluster=cluster)):
        digits = tf.data.Dataset.from_tensor_slices(task.training_set()).shuffle(20_000, seed=index).repeat().batch(task.BATCH).prefetch(2)
        iterator = v1.data.make_initializable_iterator(digits)
        images, labels = iterator.get_next()
        loss, global_step, train = build(tf, images, labels)
        start = v1.train.Scaffold(local_init_op=v1.group(v1.local_variables_initializer(), iterator.initializer))
        session = v1.train.MonitoredTrainingSession(server.target, is_chief=index == 0, scaffold=start, config=filters)
        step = local = 0
        with session:
            while step < steps:
                step, value, _ = session.run([global_step, loss, train])
                if index == 0 and local % MARK_EVERY == 0:
                    stopwatch.mark(int(step), float(value))
                local += 1
    if index == 0:
        stopwatch.print()


def main() -> None:
    """Be one task, or start them all."""
    options = task.arguments(__doc__, job="", index=0, cluster="")
    if not options.job:
        sys.exit(run_all(options.steps))
    stopwatch = task.Stopwatch(options.steps)
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    cluster = json.loads(options.cluster)
    if options.job == "ps":
        tf.compat.v1.train.Server(cluster, job_name="ps", task_index=0).join()
    work(tf, options.steps, options.index, cluster, stopwatch)


if __name__ == "__main__":
    main()
