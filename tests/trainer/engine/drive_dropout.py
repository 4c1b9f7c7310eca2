"""Steps on real workers that differ in what their random layers drop alone; prints each one's loss as JSON.

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
alive: list[Any] = []  # sessions must not be torn down while their servers are gone


def main(scratch: str) -> None:
    from tests.trainer.engine.servers_here import servers

    try:
        with servers(scratch, ps=1, workers=WORKERS) as here:
            print(json.dumps(losses(here)), flush=True)
    except Exception:  # noqa: BLE001 - the test shows it; this process leaves as the trainer does
        traceback.print_exc()
    finally:
        os._exit(0)


def losses(here: Any) -> dict[str, dict[str, dict[int, float]]]:
    from trainer.task import importing_silently

    with importing_silently():  # as the trainer does: the garbage collector looks no further at what an import has made
        import keras  # noqa: F401
        import tensorflow  # noqa: F401, ICN001

    from tests.trainer.engine.small import Alike, Delayed, small_job
    from trainer.engine.parameter_server.asynchronous import AsynchronousSession
    from trainer.engine.parameter_server.synchronous import SynchronousSession
    from trainer.engine.parameter_server.worker_pool import connect
    from trainer.tf_config import parse

    connection = connect(parse(here.tf_config))
    kinds: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "asynchronous": (AsynchronousSession, {}),
        "compiled, of two batches": (AsynchronousSession, {"jit_compile": True, "gradients": {"accumulate": 2}}),
        "synchronous": (SynchronousSession, {"sync": {"replicas_to_aggregate": WORKERS}}),
    }

    class Waiting(Alike, Delayed):
        """Waits for each batch: a worker makes few steps while the other one compiles, or is started again."""

    params = {"dropout": True, "seconds": 0.05, "slower": 1}
    told: dict[str, dict[str, dict[int, float]]] = {}
    for name, (made, settings) in kinds.items():
        session = made(Waiting(params), small_job(steps=1_000_000, **settings), connection, lambda: False)
        alive.append(session)
        session.begin_at(0)
        told[name] = steps_of(session)
        if name == "asynchronous":
            here.processes["worker-1"].kill()
            here.processes["worker-1"].wait()
            here.start("worker", 1)
            told["started again"] = {"worker-1": told[name]["worker-1"], "again": steps_of(session)["worker-1"]}
        session.run(1, finish=True)
    return told


def steps_of(session: Any) -> dict[str, dict[int, float]]:
    """Return the first losses of each worker that are told from now on, STEPS of them, by the numbers of their steps from 0.

    Not more of a worker that is faster: of many losses that have nothing in common two are the same by chance.
    """
    before = list(session._workers.local_steps)
    found: dict[str, dict[int, float]] = {f"worker-{i}": {} for i in range(WORKERS)}
    while min(map(len, found.values())) < STEPS:
        for worker in session.run(1).workers:
            index = int(worker.task.partition("-")[2])
            if len(found[worker.task]) < STEPS:
                found[worker.task][worker.local_step - before[index] - 1] = worker.loss
    session.flush()
    session.run(1)  # tells of what was under way
    return found


if __name__ == "__main__":
    main(sys.argv[1])
