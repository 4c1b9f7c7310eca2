"""Trains on real ps and worker processes with callbacks that change the rate, and weights; prints the results as JSON.

Usage: drive_served_callbacks.py SCRATCH. It is a process of its own because a chief's connection is for the whole process.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

alive: list[Any] = []  # keeps the sessions: TensorFlow complains if one is destroyed after its servers
# Settings of `train`.
KINDS: dict[str, dict[str, Any]] = {"asynchronous": {}, "synchronous": {"sync": {"replicas_to_aggregate": 1}}}


def main(scratch: str) -> None:
    from tests.trainer.engine.servers_here import servers

    try:
        with servers(scratch, ps=1, workers=1) as cluster:
            print(json.dumps(report(cluster.tf_config, scratch)), flush=True)
    except Exception:  # noqa: BLE001 - the test shows it; this process leaves as the trainer does
        traceback.print_exc()
    finally:
        os._exit(0)


def report(tf_config: str, scratch: str) -> dict[str, Any]:
    from tests.trainer.engine.drivers import connect_to_servers

    connection = connect_to_servers(tf_config)
    import keras

    from tests.trainer.engine.calling import Changing, SmallWithCallbacks, callback_job, weight_sum
    from tests.trainer.engine.test_loop import Output
    from trainer.engine import loop
    from trainer.engine.parameter_server.asynchronous import AsynchronousSession
    from trainer.engine.parameter_server.synchronous import SynchronousSession
    from trainer.events import Reporter
    from trainer.workloads.errors import WorkloadError

    def trained(kind: str, name: str, *callbacks: keras.callbacks.Callback) -> tuple[Any, Any]:
        workload = SmallWithCallbacks(lambda: callbacks, optimizer="SGD")
        job = callback_job(workload, Path(scratch, kind, name), 1, epochs=10, batch_size=80, **KINDS[kind])
        session = (SynchronousSession if KINDS[kind] else AsynchronousSession)(workload, job, connection, lambda: False)
        alive.append(session)
        outcome = loop.run(session, workload, job, Reporter("chief", Output()), lambda: False)
        session.close()
        return session, outcome

    results: dict[str, Any] = {}
    for kind in KINDS:
        changing = Changing(weights=False)
        batches: list[int] = []
        batch_counter = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, _, into=batches: into.append(batch))
        # No later epoch is better by `min_delta`, so the first one counts as the best.
        best = keras.callbacks.EarlyStopping(monitor="loss", min_delta=10.0, patience=20, restore_best_weights=True)
        session, outcome = trained(kind, "rate", changing, best, batch_counter)
        results[kind] = {
            "step": outcome.step,
            "seen": changing.weight_sums,
            "sum": weight_sum(session.model),
            "rate": float(session.optimizer.learning_rate.numpy()),
            "batches": batches,
        }
        try:
            trained(kind, "weights", Changing())
        except WorkloadError as error:
            results[kind]["refused"] = str(error)
    return results


if __name__ == "__main__":
    main(sys.argv[1])
