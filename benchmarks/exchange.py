"""The cost of exchanging gradients: our all-reduce loop of 2 workers, and the same with only a part of the gradient exchanged.

Both are the trainer's own session in two processes, started without the launcher. With `--floats 1000` the workers exchange
the first 1,000 numbers of the largest gradient, 4 kB, and apply the rest of their own gradients as they are.
"""

import json
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import ours, task
from benchmarks.processes import free_addresses, started

STEPS_PER_CALL = 50


def connected(floats: int, index: int) -> Any:
    """Return the connected all-reduce of 2 workers; with `floats`, one that exchanges only so many numbers."""
    import tensorflow as tf

    from trainer.engine.collectives.all_reduce import AllReduce

    class Slice(AllReduce):
        """Exchanges only the beginning of the largest gradient."""

        def mean_gradients(self, gradients: Sequence[Any], rows: Sequence[tf.IndexedSlices] = ()) -> tuple[list[Any], tf.Tensor]:
            """Return the gradients, of which the first numbers are the mean of both workers'; and the seconds of the exchange."""
            dense = [tf.convert_to_tensor(g) for g in (*gradients, *rows)]
            largest = max(range(len(dense)), key=lambda i: math.prod(dense[i].shape))
            flat = tf.reshape(dense[largest], [-1])
            (mean,), waited = super().mean_gradients([flat[:floats]])
            dense[largest] = tf.reshape(tf.concat([mean, flat[floats:]], 0), dense[largest].shape)
            return dense, waited

    all_reduce = (Slice if floats else AllReduce)(task.WORKERS, index)
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
    if message := all_reduce.connect([f"worker-{i}" for i in range(task.WORKERS)], cluster):
        sys.exit(message)
    return all_reduce


def work(index: int, steps: int, floats: int, stopwatch: task.Stopwatch) -> None:
    """Train as worker `index`; worker 0 measures."""
    from trainer.engine.replicated import ReplicatedSession
    from trainer.workloads.loading import load_workload

    config = ours.config_of({**ours.MLP, "steps": steps}, "multi_worker_mirrored")
    session = ReplicatedSession(load_workload(config.train), config, connected(floats, index))
    session.begin_at(0)
    while session.step < steps:
        progress = session.run(1 if session.step == 0 else min(STEPS_PER_CALL, steps - session.step))
        if progress.loss is not None:  # always, except for agents
            stopwatch.mark(progress.step, progress.loss)
    session.close()
    if index == 0:
        stopwatch.print()


def main() -> None:
    """Be one worker, or start both."""
    options = task.parse_arguments(__doc__, job="", index=0, cluster="", floats=0)
    if options.job:
        task_config = {"cluster": json.loads(options.cluster), "task": {"type": options.job, "index": options.index}}
        os.environ["TF_CONFIG"] = json.dumps(task_config)
        stopwatch = task.Stopwatch(options.steps)
        work(options.index, options.steps, options.floats, stopwatch)
        sys.stdout.flush()
        os._exit(0)  # TensorFlow's collective runtime takes its time to end
    cluster = json.dumps({"worker": free_addresses(task.WORKERS)})
    shared = ["--steps", str(options.steps), "--floats", str(options.floats), "--cluster", cluster]
    with started("benchmarks.exchange", [("worker", index) for index in range(task.WORKERS)], shared) as workers:
        codes = [worker.wait(task.DEADLINE) for worker in workers]
        sys.exit(next((code for code in codes if code), 0))


if __name__ == "__main__":
    main()
