"""A model of 160 small variables on `tf.distribute.ParameterServerStrategy`, in a loop written by hand as in its guide.

Model and optimizer are created in the strategy's scope, so each variable is on the ps, and is read and updated separately; a
`ClusterCoordinator` schedules closures of `--calls` steps. 1 ps and 2 workers, each `tf.distribute.Server` in a process.
"""

import json
import os
import sys
from collections import deque

from benchmarks import task
from benchmarks.processes import free_addresses, started

IN_FLIGHT = 2 * task.WORKERS  # closures: so no worker waits for the coordinator
# With one inter-op thread a server's data pipeline and the loop that reads it wait for each other forever.
ENVIRONMENT = {"TF_NUM_INTEROP_THREADS": "4", "GRPC_FAIL_FAST": "use_caller"}


def serve(cluster: dict[str, list[str]], job: str, index: int) -> None:
    """Be a ps or a worker, until killed."""
    import tensorflow as tf

    tf.distribute.Server(cluster, job_name=job, task_index=index, protocol="grpc").join()


def coordinate(cluster: dict[str, list[str]], steps: int, calls: int, stopwatch: task.Stopwatch) -> None:
    """Train for `steps` steps of all workers together."""
    import tensorflow as tf

    from benchmarks.workloads import Many

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    workload = Many({}, "synthetic", 0)
    with strategy.scope():
        model, optimizer = workload.model(), workload.optimizer()
        optimizer.build(model.trainable_variables)

    def data() -> tf.data.Dataset:
        images, labels = task.training_set()
        digits = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images)).repeat()
        return digits.batch(task.BATCH, drop_remainder=True).prefetch(2)

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = workload.loss(labels, model(images, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    @tf.function
    def train(iterator: tf.data.Iterator, count: tf.Tensor) -> tf.Tensor:
        loss = tf.constant(0.0)
        for _ in tf.range(count):
            images, labels = next(iterator)
            loss = strategy.run(step, args=(images, labels))
        return loss

    iterator = iter(coordinator.create_per_worker_dataset(data))
    waiting: deque[tuple[int, tf.distribute.coordinator.RemoteValue]] = deque()
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
    options = task.parse_arguments(__doc__, job="", index=0, cluster="", calls=50)
    if options.job:
        serve(json.loads(options.cluster), options.job, options.index)
        return
    os.environ |= {**ENVIRONMENT, "BENCH_TASK": "chief-0"}
    stopwatch = task.Stopwatch(options.steps)
    chief, ps, *workers = free_addresses(2 + task.WORKERS)
    cluster = {"chief": [chief], "ps": [ps], "worker": workers}
    tasks = [("ps", 0), *(("worker", index) for index in range(task.WORKERS))]
    with started("benchmarks.strategy_ps", tasks, ["--cluster", json.dumps(cluster)], ENVIRONMENT):
        coordinate(cluster, options.steps, options.calls, stopwatch)
        sys.stdout.flush()
        # The strategy's threads would still call servers that are gone.
        leave = os._exit
    leave(0)


if __name__ == "__main__":
    main()
