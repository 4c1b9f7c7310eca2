"""Takes steps on real workers that differ only in the units that their random layers drop, or in noise of tf.random or keras.random; prints the losses of each as JSON.

Usage: drive_dropout.py SCRATCH. It is a process of its own because a chief's connection is for the whole process.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

WORKERS, STEPS = 2, 6
alive: list[Any] = []  # keeps the sessions: TensorFlow complains if one is destroyed after its servers


def main(scratch: str) -> None:
    from tests.trainer.engine.servers_here import servers

    try:
        with servers(scratch, ps=1, workers=WORKERS) as cluster:
            print(json.dumps(losses_of_cases(cluster)), flush=True)
    except Exception:  # noqa: BLE001 - the test shows it; this process leaves as the trainer does
        traceback.print_exc()
    finally:
        os._exit(0)


def losses_of_cases(cluster: Any) -> dict[str, dict[str, dict[int, float]]]:
    from tests.trainer.engine.drivers import connect_to_servers

    connection = connect_to_servers(cluster.tf_config)
    from tests.trainer.engine.small import Alike, Delayed, small_config
    from trainer.engine.parameter_server.asynchronous import AsynchronousSession
    from trainer.engine.parameter_server.synchronous import SynchronousSession

    sync = {"sync": {"replicas_to_aggregate": WORKERS}}
    cases: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
        "asynchronous": (AsynchronousSession, {}, "dropout"),
        "compiled, of two batches": (AsynchronousSession, {"jit_compile": True, "gradients": {"accumulate": 2}}, "dropout"),
        "synchronous": (SynchronousSession, sync, "dropout"),
        "noise": (AsynchronousSession, {}, "noise"),
        "synchronous noise": (SynchronousSession, sync, "noise"),
        "unseeded": (AsynchronousSession, {}, "unseeded"),
        "compiled unseeded, of two batches": (AsynchronousSession, {"jit_compile": True, "gradients": {"accumulate": 2}}, "unseeded"),
    }

    class Waiting(Alike, Delayed):
        """Waits for each batch, so that a worker takes only few steps while the other one compiles or starts again."""

    losses: dict[str, dict[str, dict[int, float]]] = {}
    for name, (session_class, settings, layer) in cases.items():
        params = {layer: True, "seconds": 0.05, "slower": 1}
        session = session_class(Waiting(params), small_config(steps=1_000_000, **settings), connection, lambda: False)
        alive.append(session)
        session.begin_at(0)
        losses[name] = next_losses(session)
        if settings == {}:
            cluster.processes["worker-1"].kill()
            cluster.processes["worker-1"].wait()
            cluster.start("worker", 1)
            losses[f"{name}, started again"] = {"worker-1": losses[name]["worker-1"], "again": next_losses(session)["worker-1"]}
        session.run(1, finish=True)
    return losses


def next_losses(session: Any) -> dict[str, dict[int, float]]:
    """Return the losses of each worker's next STEPS steps by the step's number, from 0.

    A faster worker has no more: among many unrelated losses, two are equal by chance.
    """
    before = list(session._workers.local_steps)
    losses: dict[str, dict[int, float]] = {f"worker-{i}": {} for i in range(WORKERS)}
    while min(map(len, losses.values())) < STEPS:
        for worker in session.run(1).workers:
            index = int(worker.task.partition("-")[2])
            if len(losses[worker.task]) < STEPS:
                losses[worker.task][worker.local_step - before[index] - 1] = worker.loss
    session.flush()
    session.run(1)  # reports the steps that were in progress
    return losses


if __name__ == "__main__":
    main(sys.argv[1])
