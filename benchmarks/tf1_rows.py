"""A table in two parts before TensorFlow 2: 2 ps and 2 workers, each a process that builds its own copy of the graph.

As in tf1_ps.py, with `fixed_size_partitioner`, `compat.v1.nn.embedding_lookup` and Adagrad, and rows.py's task.
Started without `--job` it starts the four processes and waits for the workers.
"""

import json
import sys
from typing import Any

from benchmarks import task, tf1_session
from benchmarks.processes import free_addresses, started
from benchmarks.tf1_ps import MARK_EVERY

SERVERS = 2


def run_all(steps: int, rows: int) -> int:
    """Start ps and workers, wait for the workers, end all; return the first exit code that is not 0."""
    addresses = free_addresses(SERVERS + task.WORKERS)
    cluster = {"ps": addresses[:SERVERS], "worker": addresses[SERVERS:]}
    tasks = [(job, index) for job, members in cluster.items() for index in range(len(members))]
    options = ["--steps", str(steps), "--rows", str(rows), "--cluster", json.dumps(cluster)]
    with started("benchmarks.tf1_rows", tasks, options) as processes:
        codes = [process.wait(task.DEADLINE) for process in processes[SERVERS:]]
        return next((code for code in codes if code), 0)


def build(tf: Any, ids: Any, targets: Any, rows: int) -> tuple[Any, Any, Any]:
    """Return the operations for loss, global step and one training step."""
    from benchmarks.rows import DIMENSION, INIT_RANGE, LEARNING_RATE, UNITS

    v1 = tf.compat.v1

    def dense(values: Any, name: str, size: int, units: int) -> Any:
        weights = v1.get_variable(f"w{name}", [size, units], initializer=v1.glorot_uniform_initializer())
        return tf.matmul(values, weights) + v1.get_variable(f"b{name}", [units], initializer=v1.zeros_initializer())

    initializer = v1.random_uniform_initializer(-INIT_RANGE, INIT_RANGE)
    table = v1.get_variable("table", [rows, DIMENSION], initializer=initializer, partitioner=v1.fixed_size_partitioner(SERVERS))
    pooled = tf.reduce_mean(v1.nn.embedding_lookup(table, ids), 1)
    outputs = dense(tf.nn.relu(dense(pooled, "1", DIMENSION, UNITS)), "2", UNITS, 1)
    loss = tf.reduce_mean(tf.square(targets - outputs))
    step = v1.train.get_or_create_global_step()
    return loss, step, v1.train.AdagradOptimizer(LEARNING_RATE).minimize(loss, global_step=step)


def work(tf: Any, steps: int, index: int, rows: int, cluster: dict[str, list[str]], stopwatch: task.Stopwatch) -> None:
    """Train as worker `index` until the global step is `steps`; worker 0 measures."""
    from benchmarks.rows import IDS, batches

    v1 = tf.compat.v1
    filters = v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
    server = v1.train.Server(cluster, job_name="worker", task_index=index, config=filters)
    device = f"/job:worker/task:{index}"
    with v1.Graph().as_default(), v1.device(v1.train.replica_device_setter(worker_device=device, cluster=cluster)):
        iterator = v1.data.make_initializable_iterator(batches(rows, IDS, index))
        ids, targets = iterator.get_next()
        loss, global_step, train = build(tf, ids, targets, rows)
        start = v1.train.Scaffold(local_init_op=v1.group(v1.local_variables_initializer(), iterator.initializer))
        step = local = 0
        with tf1_session.session(tf, server.target, start, filters, index) as session:
            while step < steps:
                step, value, _ = session.run([global_step, loss, train])
                if index == 0 and local % MARK_EVERY == 0:
                    stopwatch.mark(int(step), float(value))
                local += 1
    if index == 0:
        stopwatch.print()


def main() -> None:
    """Be one task, or start them all."""
    options = task.parse_arguments(__doc__, job="", index=0, cluster="", rows=1_000_000)
    if not options.job:
        sys.exit(run_all(options.steps, options.rows))
    stopwatch = task.Stopwatch(options.steps)
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    cluster = json.loads(options.cluster)
    if options.job == "ps":
        tf.compat.v1.train.Server(cluster, job_name="ps", task_index=options.index).join()
    work(tf, options.steps, options.index, options.rows, cluster, stopwatch)


if __name__ == "__main__":
    main()
