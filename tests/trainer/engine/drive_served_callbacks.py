"""Trains on real ps and worker processes with callbacks that change the rate, and weights; prints JSON of what follows.

Usage: drive_served_callbacks.py SCRATCH. It is a process of its own because a chief's connection is for the whole process.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

alive: list[Any] = []  # sessions must not be torn down while their servers are gone
# Settings of `train`.
KINDS: dict[str, dict[str, Any]] = {"asynchronous": {}, "synchronous": {"sync": {"replicas_to_aggregate": 1}}}


def main(scratch: str) -> None:
    from tests.trainer.engine.servers_here import servers

    try:
        with servers(scratch, ps=1, workers=1) as here:
            print(json.dumps(report(here.tf_config, scratch)), flush=True)
    except Exception:  # noqa: BLE001 - the test shows it; this process leaves as the trainer does
        traceback.print_exc()
    finally:
        os._exit(0)


def report(tf_config: str, scratch: str) -> dict[str, Any]:
    from trainer.task import importing_silently

    with importing_silently():  # as the trainer does: the garbage collector looks no further at what an import has made
        import keras
        import tensorflow  # noqa: F401, ICN001

    from tests.trainer.engine.calling import Calling, Changing, calling_job, sum_of
    from tests.trainer.engine.test_loop import Output
    from trainer.engine import loop
    from trainer.engine.parameter_server.asynchronous import AsynchronousSession
    from trainer.engine.parameter_server.synchronous import SynchronousSession
    from trainer.engine.parameter_server.worker_pool import connect
    from trainer.events import Reporter
    from trainer.tf_config import parse
    from trainer.workloads.errors import WorkloadError

    connection = connect(parse(tf_config))

    def trained(kind: str, name: str, *callbacks: keras.callbacks.Callback) -> tuple[Any, Any]:
        workload = Calling(lambda: callbacks, optimizer="SGD")
        job = calling_job(workload, Path(scratch, kind, name), 1, epochs=10, batch_size=80, **KINDS[kind])
        session = (SynchronousSession if KINDS[kind] else AsynchronousSession)(workload, job, connection, lambda: False)
        alive.append(session)
        outcome = loop.run(session, workload, job, Reporter("chief", Output()), lambda: False)
        session.close()
        return session, outcome

    told: dict[str, Any] = {}
    for kind in KINDS:
        changing = Changing(weights=False)
        batches: list[int] = []
        counting = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, _, into=batches: into.append(batch))
        # The first epoch is taken for the best one: none is so much better.
        best = keras.callbacks.EarlyStopping(monitor="loss", min_delta=10.0, patience=20, restore_best_weights=True)
        session, outcome = trained(kind, "rate", changing, best, counting)
        told[kind] = {
            "step": outcome.step,
            "seen": changing.seen,
            "sum": sum_of(session.model),
            "rate": float(session.optimizer.learning_rate.numpy()),
            "batches": batches,
        }
        try:
            trained(kind, "weights", Changing())
        except WorkloadError as error:
            told[kind]["refused"] = str(error)
    return told


if __name__ == "__main__":
    main(sys.argv[1])
