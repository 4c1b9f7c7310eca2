"""rows.py's task on `tf.distribute.ParameterServerStrategy`, in a loop written by hand as in its guide: 2 ps and 2 workers.

The table is one variable in two parts (`FixedShardsPartitioner`), looked up by `tf.nn.embedding_lookup`; a `ClusterCoordinator` schedules
closures of `--calls` steps. Keras's optimizers do not support partitioned variables, so Adagrad is TensorFlow's own operation, on the ps of each part.
"""

import json
import os
import sys
from collections import deque
from typing import Any

from benchmarks import task
from benchmarks.processes import free_addresses, started
from benchmarks.strategy_ps import ENVIRONMENT, IN_FLIGHT, serve

SERVERS = 2
SMALL = 1000  # rows of a variable that is left in one part
ACCUMULATED = 0.1  # before the first step


def in_parts(shape: Any, dtype: Any) -> Any:
    """Return the number of partitions of a variable, for the strategy."""
    import tensorflow as tf

    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(SERVERS)
    return partitioner(shape, dtype) if shape[0] > SMALL else [1] * len(shape)


def program(strategy: Any, rows: int) -> Any:
    """Create variables on the servers; return the function that runs steps."""
    import tensorflow as tf

    from benchmarks.rows import DIMENSION, INIT_RANGE, LEARNING_RATE, UNITS

    shapes = {"table": [rows, DIMENSION], "w1": [DIMENSION, UNITS], "b1": [UNITS], "w2": [UNITS, 1], "b2": [1]}

    def variable_of(name: str, low: float, high: float) -> Any:
        def initial_value(partition_shape: Any = None, partition_offset: Any = None) -> tf.Tensor:
            del partition_offset
            return tf.random.uniform(partition_shape or shapes[name], low, high)

        return tf.Variable(initial_value, shape=shapes[name], dtype=tf.float32)

    with strategy.scope():
        limits = {"table": INIT_RANGE, **{name: (6 / sum(shapes[name])) ** 0.5 for name in ("w1", "w2")}}
        variables = {name: variable_of(name, -limits.get(name, 0.0), limits.get(name, 0.0)) for name in shapes}
        # The strategy places variables on its servers in turn: so each is on the same ps as its sums.
        sums_of = [variable_of(name, ACCUMULATED, ACCUMULATED) for name in shapes]
    trained = [part for variable in variables.values() for part in parts_of(variable)]
    accumulated = [part for sums in sums_of for part in parts_of(sums)]

    def step(ids: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            pooled = tf.reduce_mean(tf.nn.embedding_lookup(variables["table"], ids), 1)
            hidden = tf.nn.relu(tf.matmul(pooled, variables["w1"]) + variables["b1"])
            loss = tf.reduce_mean(tf.square(targets - tf.matmul(hidden, variables["w2"]) - variables["b2"]))
        for gradient, variable, sums in zip(tape.gradient(loss, trained), trained, accumulated, strict=True):
            common = {"var": variable.handle, "accum": sums.handle, "lr": LEARNING_RATE, "epsilon": 1e-7}
            with tf.device(variable.device):
                if isinstance(gradient, tf.IndexedSlices):
                    tf.raw_ops.ResourceSparseApplyAdagradV2(**common, grad=gradient.values, indices=gradient.indices)
                else:
                    tf.raw_ops.ResourceApplyAdagradV2(**common, grad=gradient)
        return loss

    @tf.function
    def train(iterator: Any, count: tf.Tensor) -> tf.Tensor:
        loss = tf.constant(0.0)
        for _ in tf.range(count):
            ids, targets = next(iterator)
            loss = step(ids, targets)
        return loss

    return train


def parts_of(variable: Any) -> list[Any]:
    """Return the variables that a variable consists of."""
    return list(getattr(variable, "variables", [variable]))


def coordinate(cluster: dict[str, list[str]], steps: int, rows: int, calls: int, stopwatch: task.Stopwatch) -> None:
    """Train for `steps` steps of all workers together."""
    import tensorflow as tf

    from benchmarks.rows import IDS, batches

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=in_parts)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    train = program(strategy, rows)

    def data() -> tf.data.Dataset:
        # The same on each worker, except for the random seed.
        return batches(rows, IDS, tf.random.uniform([], maxval=2**31 - 1, dtype=tf.int32))

    iterator = iter(coordinator.create_per_worker_dataset(data))
    waiting: deque[tuple[int, Any]] = deque()
    done = scheduled = 0
    while done < steps:
        while scheduled < steps and len(waiting) < IN_FLIGHT:
            # The first call is one step, so that the time to the first step is just that.
            count = 1 if scheduled == 0 else min(calls, steps - scheduled)
            waiting.append((count, coordinator.schedule(train, args=(iterator, tf.constant(count)))))
            scheduled += count
        count, result = waiting.popleft()
        loss = float(result.fetch())
        done += count
        stopwatch.mark(done, loss)
    stopwatch.print()


def main() -> None:
    """Be one task, or start them all and coordinate."""
    options = task.parse_arguments(__doc__, job="", index=0, cluster="", calls=50, rows=1_000_000)
    if options.job:
        serve(json.loads(options.cluster), options.job, options.index)
        return
    os.environ |= {**ENVIRONMENT, "BENCH_TASK": "chief-0"}
    stopwatch = task.Stopwatch(options.steps)
    addresses = free_addresses(1 + SERVERS + task.WORKERS)
    cluster = {"chief": addresses[:1], "ps": addresses[1 : 1 + SERVERS], "worker": addresses[1 + SERVERS :]}
    tasks = [(job, index) for job in ("ps", "worker") for index in range(len(cluster[job]))]
    with started("benchmarks.strategy_rows", tasks, ["--cluster", json.dumps(cluster)], ENVIRONMENT):
        coordinate(cluster, options.steps, options.rows, options.calls, stopwatch)
        sys.stdout.flush()
        # The strategy's threads would still call servers that are gone.
        leave = os._exit
    leave(0)


if __name__ == "__main__":
    main()
