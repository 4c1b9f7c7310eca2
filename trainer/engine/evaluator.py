"""The evaluator task: follows the chief's checkpoints and evaluates each newest one into `logs/eval`."""

import time
from collections import Counter
from collections.abc import Callable

import tensorflow as tf

from trainer.engine import averages, compute, record
from trainer.engine.compute import Evaluator
from trainer.engine.job import Job
from trainer.engine.logs import Logs
from trainer.engine.session import PeerLostError
from trainer.events import Reporter
from trainer.workloads.protocol import Workload

_LOOK_EVERY = 0.5  # seconds between looks for a new checkpoint
_TRIES = 5  # to read one checkpoint


def follow(workload: Workload, job: Job, report: Reporter, stopped: Callable[[], bool]) -> tuple[int, dict[str, float]] | None:
    """Evaluate checkpoints until the run's last one is done; return its step and metrics, None when stopped.

    Raises PeerLostError when the chief has given no sign for `orphan_timeout`. Steps that the chief leaves behind faster than they can be evaluated are passed over.
    """
    run_dir = job.run_dir
    built = compute.build(workload, job.seed)
    model, optimizer = built.model, built.optimizer
    evaluate = Evaluator(workload, model, job.evaluation_batch_size)
    step = tf.Variable(0, dtype=tf.int64)
    # The optimizer only where it keeps the averages that are evaluated: its slots may be twice the model.
    saved = tf.train.Checkpoint(model=model, step=step, **({"optimizer": optimizer} if optimizer.use_ema else {}))
    logs = Logs(run_dir)
    done: set[str] = set()
    failures: Counter[str] = Counter()
    metrics: dict[str, float] = {}
    heard = time.monotonic()  # of the chief
    updated: float | None = None
    while not stopped():
        # Read before the checkpoint: a run that was complete then has saved its last one.
        complete = record.read(run_dir)
        if complete.get("updated") != updated:
            heard, updated = time.monotonic(), complete.get("updated")
        elif time.monotonic() - heard > job.orphan_timeout:
            raise PeerLostError(f"the chief has written nothing to {run_dir / 'run.json'} for {job.orphan_timeout:.0f} s")
        path = tf.train.latest_checkpoint(str(run_dir / "checkpoints"))
        if path and path not in done:
            began = time.monotonic()
            try:
                saved.restore(path).expect_partial()
            except Exception as error:  # noqa: BLE001 - a damaged file shows as whatever the reader stumbles over
                # Deleted by the chief meanwhile, on its way through a network file system, or damaged.
                failures[path] += 1
                if failures[path] >= _TRIES:
                    report("notice", message=f"the checkpoint {path} cannot be read: {next(iter(str(error).splitlines()), repr(error))}")
                    done.add(path)
                time.sleep(_LOOK_EVERY)
                continue
            averages.take(model, optimizer)
            metrics = evaluate()
            done.add(path)
            logs.evaluation(metrics, int(step.numpy()))
            report("evaluated", step=int(step.numpy()), metrics=metrics, seconds=time.monotonic() - began)
        elif path and complete.get("state") == "succeeded" and complete.get("step", 0) >= job.steps:
            logs.close()
            return int(step.numpy()), metrics
        else:
            time.sleep(_LOOK_EVERY)
    return None
