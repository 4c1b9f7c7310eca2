"""Trains synchronously on 2 real ps and 3 real workers and prints, as JSON, the differences from one process.

Usage: drive_synchronous.py SCRATCH. It is a process of its own because a chief's connection is for the whole process.
"""

import faulthandler
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

WORKERS, BATCH, ROUNDS = 3, 8, 25
DIFFERING = [[5, 20], [15, 0]]  # rounds that each of two servers has to do in a call
LONGEST = 380  # seconds that a test waits for this program
STEP_SECONDS = 0.05  # what the workers of the timed runs wait for each batch, in the place of computing for so long
SLOWER = 10  # how many times that the slow worker waits

# name -> the workload's parameters and the settings of `train.gradients`.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "adam": ({}, {}),
    "sgd-momentum-accumulated-clipped": (
        {"optimizer": "SGD", "arguments": {"momentum": 0.9}},
        {"accumulate": 2, "clip_global_norm": 0.1},
    ),
    "bfloat16": ({"optimizer": "SGD"}, {"wire": "bfloat16"}),
}

# name -> the parameters of tests.trainer.engine.embedding_models.
TABLES: dict[str, dict[str, Any]] = {
    "tables alone": {"model": "alone", "optimizer": "Adam"},
}

SAVED = "tables that are saved"  # as those, in the trainer's own loop

alive: list[Any] = []  # sessions must not be torn down while their servers are gone


def main(scratch: str) -> None:
    from tests.trainer.engine.servers_here import servers

    faulthandler.dump_traceback_later(LONGEST - 20)  # where it waits, should it hang
    try:
        with servers(scratch, ps=2, workers=WORKERS) as here:
            print(json.dumps(compare(here)), flush=True)
    except Exception:  # noqa: BLE001 - the test shows it; this process leaves as the trainer does
        traceback.print_exc()
    finally:
        os._exit(0)


def rows_compared(scratch: Path, params: dict[str, Any], connection: Any) -> dict[str, Any]:
    """Train large embedding layers in rounds of all workers, and in one process on the batches of each round; return the difference."""
    from tests.trainer.engine.drive_embeddings import job_of
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.parameter_server.synchronous import SynchronousSession
    from trainer.engine.replicated import LocalSession
    from trainer.workloads.loading import load_workload

    job = job_of(scratch, params, steps=ROUNDS, sync={"replicas_to_aggregate": WORKERS})
    remote = SynchronousSession(load_workload(job.train), job, connection, lambda: False)
    alive.append(remote)
    one = job_of(scratch, params, steps=ROUNDS, gradients={"accumulate": WORKERS})
    local = LocalSession(load_workload(one.train), one, AllReduce())
    local.begin_at(0)
    local.run(ROUNDS)
    remote.begin_at(0)
    last = [remote.run(ROUNDS // 5) for _ in range(5)][-1]
    remote.fetch()
    difference = apart(remote, local)
    remote.close()
    return {"difference": difference, "step": remote.step, "dropped": last.dropped}


def apart(remote: Any, local: Any) -> float:
    """Return how far the rows and weights of a session are from those of one process."""
    import numpy as np

    from tests.trainer.engine.drive_embeddings import rows_here, rows_of

    rows, here = rows_of(remote.tables), rows_here(local)
    pairs = [(rows[name], value) for name, value in here.items()]
    pairs += zip(remote.model.trainable_variables, [v for v in local.model.trainable_variables if "embeddings" not in v.name], strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)


def rows_of_a_save(scratch: Path, connection: Any) -> dict[str, Any]:
    """Train as in `rows_compared`, and save after half of the rounds, rows slowly; return how far those, and the last, are from one process's."""
    import numpy as np
    import tensorflow as tf

    from tests.trainer.engine.drive_embeddings import job_of, rows_here, rows_of
    from trainer.engine import loop
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.parameter_server.synchronous import SynchronousSession
    from trainer.engine.replicated import LocalSession
    from trainer.events import Reporter
    from trainer.workloads.loading import load_workload

    params, half = {"model": "functional", "optimizer": "Adagrad"}, ROUNDS // 2
    settings: dict[str, Any] = {"checkpoint": {"every_steps": half}, "evaluate": {"every_steps": 0}, "summaries": {"every_steps": 0}}
    job = job_of(scratch / "saved", params, steps=ROUNDS, sync={"replicas_to_aggregate": WORKERS}, **settings)
    workload = load_workload(job.train)
    remote = SynchronousSession(workload, job, connection, lambda: False)
    alive.append(remote)
    tables: Any = remote.tables
    read, run, dropped = tables.read, remote.run, []

    def slowly(part: Any) -> Any:
        if remote.step == half:
            time.sleep(0.1)  # in which several rounds could be done
        return read(part)

    def noted(*steps: int, **settings: Any) -> Any:
        done = run(*steps, **settings)
        dropped.append(done.dropped)
        return done

    tables.read, remote.run = slowly, noted  # type: ignore[method-assign]
    loop.run(remote, workload, job, Reporter("chief", sys.stderr), lambda: False)
    remote.fetch()
    one = job_of(scratch, params, steps=ROUNDS, gradients={"accumulate": WORKERS})
    local = LocalSession(load_workload(one.train), one, AllReduce())
    local.begin_at(0)
    local.run(half)
    reader = tf.train.load_checkpoint(str(scratch / "saved" / "checkpoints" / f"ckpt-{half}"))
    there = [reader.get_tensor(name) for name in reader.get_variable_to_shape_map()]
    saved = max(
        min(float(np.max(np.abs(value - one))) for one in there if np.shape(one) == value.shape) for value in rows_here(local).values()
    )
    before = rows_of(remote.tables)["shared"] - rows_here(local)["shared"]
    local.run(ROUNDS - half)
    difference = apart(remote, local)
    remote.close()
    still = {"at the save": saved, "after it": float(np.max(np.abs(before)))}
    return {**still, "difference": difference, "step": remote.step, "dropped": dropped[-1]}


def rows_of_some(scratch: Path, connection: Any) -> dict[str, Any]:
    """Return how far rows move where all but one of the workers make a round, and why clipping by the norm of all is refused."""
    import numpy as np

    from tests.trainer.engine import embedding_models
    from tests.trainer.engine.drive_embeddings import job_of, rows_of
    from trainer.engine.parameter_server.synchronous import SynchronousSession
    from trainer.workloads.errors import WorkloadError
    from trainer.workloads.loading import load_workload

    def session(**gradients: float) -> Any:
        params, sync = {"model": "functional", "optimizer": "Adagrad"}, {"replicas_to_aggregate": WORKERS - 1}
        job = job_of(scratch, params, steps=ROUNDS, sync=sync, gradients=gradients)
        alive.append(SynchronousSession(load_workload(job.train), job, connection, lambda: False))
        return alive[-1]

    given = job_of(scratch, {"model": "given"}, steps=5, sync={"replicas_to_aggregate": WORKERS})
    fixed = SynchronousSession(load_workload(given.train), given, connection, lambda: False)
    alive.append(fixed)
    fixed.begin_at(0)
    fixed.run(5, finish=True)
    fixed.close()
    made = session()
    made.begin_at(0)
    made.run(ROUNDS, finish=True)
    rows = rows_of(made.tables)["shared"]
    made.close()
    try:
        session(clip_global_norm=0.1)
    except WorkloadError as error:
        refused = str(error)
    moved = float(np.max(np.abs(rows - embedding_models.start(*rows.shape).value)))
    return {"rows with a back-up": {"step": made.step, "moved": moved}, "norm of rows": refused, "given rows": fixed.step}


def compare(here: Any) -> dict[str, Any]:  # noqa: PLR0915 - one thing after the other, on one cluster
    from trainer.task import importing_silently

    with importing_silently():  # as the trainer does: the garbage collector looks no further at what an import has made
        import keras  # noqa: F401
        import tensorflow  # noqa: F401, ICN001

    import numpy as np

    from tests.trainer.engine.small import Delayed, Small, small_job
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.parameter_server import packing
    from trainer.engine.parameter_server.synchronous import SynchronousSession
    from trainer.engine.parameter_server.worker_pool import connect
    from trainer.engine.replicated import LocalSession
    from trainer.tf_config import parse

    packing.SINGLE_SERVER_BYTES = 0  # small models, too, are on both servers
    connection = connect(parse(here.tf_config))

    def session(workload: Any, needed: int, steps: int, stopped: Callable[[], bool] = lambda: False, **train: Any) -> Any:
        job = small_job(steps=steps, batch_size=BATCH, sync={"replicas_to_aggregate": needed}, **train)
        print(f"{time.monotonic():.0f} s: {len(alive)} sessions before", file=sys.stderr, flush=True)
        made = SynchronousSession(workload, job, connection, stopped)
        alive.append(made)
        made.begin_at(0)
        return made

    def weights(of: Any) -> list[Any]:
        return [np.asarray(v.value).astype(float) for v in (*of.model.variables, *of.optimizer.variables)]

    report: dict[str, Any] = {"cases": {}}
    for name, (params, gradients) in CASES.items():
        remote = session(Small(params), WORKERS, ROUNDS, gradients=gradients)
        last = [remote.run(ROUNDS // 5) for _ in range(5)][-1]
        remote.fetch()
        remote.close()
        batches = gradients.get("accumulate", 1)
        whole = {**gradients, "accumulate": 1, "wire": "float32"}
        local = LocalSession(Small(params), small_job(steps=ROUNDS, batch_size=BATCH * WORKERS * batches, gradients=whole), AllReduce())
        local.begin_at(0)
        local.run(ROUNDS)
        difference = max(float(np.max(np.abs(a - b))) for a, b in zip(weights(local), weights(remote), strict=True))
        report["cases"][name] = {"difference": difference, "step": remote.step, "dropped": last.dropped}

    for name, params in TABLES.items():
        report["cases"][name] = rows_compared(Path(here.scratch), params, connection)
    report |= rows_of_some(Path(here.scratch), connection)
    report["cases"][SAVED] = rows_of_a_save(Path(here.scratch), connection)

    def timed(slow: int) -> Any:
        """Return a session that has made rounds with two of three, of which the last is so many times slower."""
        name = "alike" if slow == 1 else "one slower"
        made = session(Delayed({"seconds": STEP_SECONDS, "slower": slow}), WORKERS - 1, 100_000)
        start = time.perf_counter()
        made.run(10)
        progress = made.run(40)
        last = made.run(20, finish=True)
        report[f"all seconds {name}"] = time.perf_counter() - start
        report[f"dropped {name}"] = last.dropped
        report[f"steps {name}"] = {w.task: w.local_step for w in (*progress.workers, *last.workers)}
        report[f"workers {name}"] = {w.task: w.examples_per_second for w in (*progress.workers, *last.workers)}
        return made

    timed(SLOWER).close()

    # All needed: the others wait for the slow one.
    held_up = session(Delayed({"seconds": STEP_SECONDS, "slower": SLOWER}), WORKERS, 13)
    held_up.run(1)  # traces
    waiting = held_up.run(12, finish=True).workers
    report["peer_wait"] = {w.task: w.peer_wait for w in waiting}
    report["input_wait"] = {w.task: w.input_wait for w in waiting}
    held_up.close()

    # A stop in the middle of a long call, and the rest of it by another session.
    asked: list[bool] = []
    stopping = session(Delayed({"seconds": STEP_SECONDS, "slower": 1}), WORKERS, 40, stopped=lambda: bool(asked))
    stopping.run(1)  # traces, and so takes as long as it takes
    threading.Timer(0.5, lambda: asked.append(True)).start()
    began = time.perf_counter()
    progress = stopping.run(39)
    report["stopped"] = {"after": time.perf_counter() - began, "step": stopping.step, "stop": progress.stop}
    stopping.fetch()
    stopping.close()
    rest = session(Small({}), WORKERS, 400)
    rest.begin_at(stopping.step)
    rest.run(40 - stopping.step, finish=True)
    report["rest step"] = rest.step

    # A worker that is killed and comes back takes part again.
    rest.run(20)
    here.processes["worker-1"].kill()
    here.processes["worker-1"].wait()
    here.start("worker", 1)
    began = time.perf_counter()
    rest.run(50)
    report["comes back after"] = time.perf_counter() - began
    rest.run(50, finish=True)
    rest.close()
    report["killed step"] = rest.step

    # A round with two of three that are all alike.
    backed_up = timed(1)

    # Two servers that differ about which gradients came first, as at the end of some call of hundreds: workers wait for the one
    # that has done its rounds, and the other for them.
    before = backed_up.step
    uneven = [backed_up._run_rounds(counts) for counts in DIFFERING]
    backed_up._step += sum(counts[0] for counts in DIFFERING)
    backed_up.run(20, finish=True)
    report["differing"] = {"done": uneven, "steps": backed_up.step - before}

    # Nobody waits for one that is not needed; it takes part again while rounds go on.
    backed_up.run(20)
    here.processes["worker-2"].kill()
    here.processes["worker-2"].wait()
    before = backed_up.step
    backed_up.run(20)
    report["rounds without it"] = backed_up.step - before
    here.start("worker", 2)
    end = time.monotonic() + 60
    while time.monotonic() < end and "worker-2" not in {w.task for w in backed_up.run(20).workers}:
        pass
    report["back-up is back"] = time.monotonic() < end
    backed_up.run(20, finish=True)
    backed_up.close()
    return report


if __name__ == "__main__":
    main(sys.argv[1])
