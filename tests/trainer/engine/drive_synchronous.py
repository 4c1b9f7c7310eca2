"""Trains synchronously on 2 real ps and 3 real workers; prints, as JSON, the differences from one process.

Usage: drive_synchronous.py SCRATCH. It is a process of its own because a chief's connection is for the whole process.
"""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

WORKERS, BATCH, ROUNDS = 3, 8, 25
DIFFERING = [[5, 20], [15, 0]]  # rounds that each of two servers does in a call
STEP_SECONDS = 0.05  # that workers of the timed runs wait for each batch, in place of computing
SLOWER = 10  # the slow worker waits so many times as long

# name -> the workload's parameters and the settings of `train.gradients`.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "adam": ({}, {}),
    "sgd-momentum-accumulated-clipped": (
        {"optimizer": "SGD", "arguments": {"momentum": 0.9}},
        {"accumulate": 2, "clip_global_norm": 0.1},
    ),
    "bfloat16": ({"optimizer": "SGD"}, {"wire": "bfloat16"}),
}

# name -> the parameters of tests.trainer.engine.embedding_models
TABLES: dict[str, dict[str, Any]] = {
    "only tables": {"model": "alone", "optimizer": "Adam"},
}

SAVED = "tables that are saved"  # another case with tables, in the trainer's own loop

alive: list[Any] = []  # keeps the sessions: TensorFlow complains if one is destroyed after its servers


def main(scratch: str) -> None:
    from tests.trainer.engine.servers_here import servers

    try:
        with servers(scratch, ps=2, workers=WORKERS) as cluster:
            print(json.dumps(compare(cluster)), flush=True)
    except Exception:  # noqa: BLE001 - the test shows it; this process leaves as the trainer does
        traceback.print_exc()
    finally:
        os._exit(0)


def compare_rows(scratch: Path, params: dict[str, Any], connection: Any) -> dict[str, Any]:
    """Train large embedding layers in rounds of all workers, and in one process on the batches of each round; return the difference."""
    from tests.trainer.engine.drive_embeddings import config_of
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.parameter_server.synchronous import SynchronousSession
    from trainer.engine.replicated import ReplicatedSession
    from trainer.workloads.loading import load_workload

    config = config_of(scratch, params, steps=ROUNDS, sync={"replicas_to_aggregate": WORKERS})
    remote = SynchronousSession(load_workload(config.train), config, connection, lambda: False)
    alive.append(remote)
    local_config = config_of(scratch, params, steps=ROUNDS, gradients={"accumulate": WORKERS})
    local = ReplicatedSession(load_workload(local_config.train), local_config, AllReduce())
    local.begin_at(0)
    local.run(ROUNDS)
    remote.begin_at(0)
    last = [remote.run(ROUNDS // 5) for _ in range(5)][-1]
    remote.fetch()
    difference = largest_difference(remote, local)
    remote.close()
    return {"difference": difference, "step": remote.step, "dropped": last.dropped}


def largest_difference(remote: Any, local: Any) -> float:
    """Return the largest difference of a row or weight between a session and one process."""
    import numpy as np

    from tests.trainer.engine.drive_embeddings import local_rows, rows_of

    rows = rows_of(remote.tables)
    pairs = [(rows[name], value) for name, value in local_rows(local).items()]
    pairs += zip(remote.model.trainable_variables, [v for v in local.model.trainable_variables if "embeddings" not in v.name], strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)


def compare_saved_rows(scratch: Path, connection: Any) -> dict[str, Any]:
    """Train as in `compare_rows`, and save, with slow rows, after half of the rounds; return how far saved and last rows are from one process's."""
    import numpy as np
    import tensorflow as tf

    from tests.trainer.engine.drive_embeddings import config_of, local_rows, rows_of
    from trainer.engine import loop
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.parameter_server.synchronous import SynchronousSession
    from trainer.engine.replicated import ReplicatedSession
    from trainer.events import Reporter
    from trainer.workloads.loading import load_workload

    params, half = {"model": "functional", "optimizer": "Adagrad"}, ROUNDS // 2
    settings: dict[str, Any] = {"checkpoint": {"every_steps": half}, "evaluate": {"every_steps": 0}, "summaries": {"every_steps": 0}}
    config = config_of(scratch / "saved", params, steps=ROUNDS, sync={"replicas_to_aggregate": WORKERS}, **settings)
    workload = load_workload(config.train)
    remote = SynchronousSession(workload, config, connection, lambda: False)
    alive.append(remote)
    tables: Any = remote.tables
    read, run, dropped = tables.read, remote.run, []

    def read_slowly(part: Any) -> Any:
        if remote.step == half:
            time.sleep(0.1)  # long enough for several rounds
        return read(part)

    def run_and_record(*steps: int, **settings: Any) -> Any:
        progress = run(*steps, **settings)
        dropped.append(progress.dropped)
        return progress

    tables.read, remote.run = read_slowly, run_and_record  # type: ignore[method-assign]
    loop.run(remote, workload, config, Reporter("chief", sys.stderr), lambda: False)
    remote.fetch()
    local_config = config_of(scratch, params, steps=ROUNDS, gradients={"accumulate": WORKERS})
    local = ReplicatedSession(load_workload(local_config.train), local_config, AllReduce())
    local.begin_at(0)
    local.run(half)
    reader = tf.train.load_checkpoint(str(scratch / "saved" / "checkpoints" / f"ckpt-{half}"))
    saved = [reader.get_tensor(name) for name in reader.get_variable_to_shape_map()]
    at_save = max(
        min(float(np.max(np.abs(value - tensor))) for tensor in saved if np.shape(tensor) == value.shape)
        for value in local_rows(local).values()
    )
    after_save = float(np.max(np.abs(rows_of(remote.tables)["shared"] - local_rows(local)["shared"])))
    local.run(ROUNDS - half)
    difference = largest_difference(remote, local)
    remote.close()
    return {"at the save": at_save, "after it": after_save, "difference": difference, "step": remote.step, "dropped": dropped[-1]}


def rows_with_a_backup(scratch: Path, connection: Any) -> dict[str, Any]:
    """Return how far rows move if a round needs all workers but one, and why clipping by the norm of all gradients is refused."""
    import numpy as np

    from tests.trainer.engine import embedding_models
    from tests.trainer.engine.drive_embeddings import config_of, rows_of
    from trainer.engine.embeddings.layers import INITIAL_ROWS
    from trainer.engine.parameter_server.synchronous import SynchronousSession
    from trainer.workloads.errors import WorkloadError
    from trainer.workloads.loading import load_workload

    def new_session(**gradients: float) -> Any:
        params, sync = {"model": "functional", "optimizer": "Adagrad"}, {"replicas_to_aggregate": WORKERS - 1}
        config = config_of(scratch, params, steps=ROUNDS, sync=sync, gradients=gradients)
        alive.append(SynchronousSession(load_workload(config.train), config, connection, lambda: False))
        return alive[-1]

    fixed_config = config_of(scratch, {"model": "given"}, steps=5, sync={"replicas_to_aggregate": WORKERS})
    fixed = SynchronousSession(load_workload(fixed_config.train), fixed_config, connection, lambda: False)
    alive.append(fixed)
    fixed.begin_at(0)
    held = any(hasattr(layer, INITIAL_ROWS) for layer in fixed.model.layers)
    fixed.run(5, finish=True)
    unchanged = all(np.array_equal(rows, embedding_models.start().value) for rows in rows_of(fixed.tables).values())
    fixed.close()
    session = new_session()
    session.begin_at(0)
    session.run(ROUNDS, finish=True)
    rows = rows_of(session.tables)["shared"]
    session.close()
    try:
        new_session(clip_global_norm=0.1)
    except WorkloadError as error:
        refused = str(error)
    moved = float(np.max(np.abs(rows - embedding_models.start(*rows.shape).value)))
    return {
        "rows with a backup": {"step": session.step, "moved": moved},
        "norm of rows": refused,
        "given rows": (fixed.step, held, unchanged),
    }


def compare(cluster: Any) -> dict[str, Any]:  # noqa: PLR0915 - all cases in turn, on one cluster
    from tests.trainer.engine.drivers import connect_to_servers

    connection = connect_to_servers(cluster.tf_config)
    import numpy as np

    from tests.trainer.engine.small import Delayed, Small, small_config
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.parameter_server import packing
    from trainer.engine.parameter_server.synchronous import SynchronousSession
    from trainer.engine.replicated import ReplicatedSession

    packing.SINGLE_SERVER_BYTES = 0  # so that small models are on both servers, too

    def new_session(workload: Any, needed: int, steps: int, stop_requested: Callable[[], bool] = lambda: False, **train: Any) -> Any:
        config = small_config(steps=steps, batch_size=BATCH, sync={"replicas_to_aggregate": needed}, **train)
        print(f"{time.monotonic():.0f} s: {len(alive)} sessions before", file=sys.stderr, flush=True)
        session = SynchronousSession(workload, config, connection, stop_requested)
        alive.append(session)
        session.begin_at(0)
        return session

    def weights(session: Any) -> list[Any]:
        return [np.asarray(v.value).astype(float) for v in (*session.model.variables, *session.optimizer.variables)]

    report: dict[str, Any] = {"cases": {}}
    for name, (params, gradients) in CASES.items():
        remote = new_session(Small(params), WORKERS, ROUNDS, gradients=gradients)
        last = [remote.run(ROUNDS // 5) for _ in range(5)][-1]
        remote.fetch()
        remote.close()
        batches = gradients.get("accumulate", 1)
        whole = {**gradients, "accumulate": 1, "wire": "float32"}
        local = ReplicatedSession(
            Small(params), small_config(steps=ROUNDS, batch_size=BATCH * WORKERS * batches, gradients=whole), AllReduce()
        )
        local.begin_at(0)
        local.run(ROUNDS)
        difference = max(float(np.max(np.abs(a - b))) for a, b in zip(weights(local), weights(remote), strict=True))
        report["cases"][name] = {"difference": difference, "step": remote.step, "dropped": last.dropped}

    for name, params in TABLES.items():
        report["cases"][name] = compare_rows(Path(cluster.scratch), params, connection)
    report |= rows_with_a_backup(Path(cluster.scratch), connection)
    report["cases"][SAVED] = compare_saved_rows(Path(cluster.scratch), connection)

    def timed(slower: int) -> Any:
        """Return a session after timed rounds that need two of three workers, of which the last is so many times slower."""
        name = "alike" if slower == 1 else "one slower"
        session = new_session(Delayed({"seconds": STEP_SECONDS, "slower": slower}), WORKERS - 1, 100_000)
        start = time.perf_counter()
        session.run(10)
        progress = session.run(40)
        last = session.run(20, finish=True)
        report[f"all seconds {name}"] = time.perf_counter() - start
        report[f"dropped {name}"] = last.dropped
        report[f"steps {name}"] = {w.task: w.local_step for w in (*progress.workers, *last.workers)}
        report[f"workers {name}"] = {w.task: w.examples_per_second for w in (*progress.workers, *last.workers)}
        return session

    timed(SLOWER).close()

    # Each round needs all workers: the others wait for the slow one.
    held_up = new_session(Delayed({"seconds": STEP_SECONDS, "slower": SLOWER}), WORKERS, 13)
    held_up.run(1)  # traces
    waiting = held_up.run(12, finish=True).workers
    report["peer_wait"] = {w.task: w.peer_wait for w in waiting}
    report["input_wait"] = {w.task: w.input_wait for w in waiting}
    held_up.close()

    # A stop in the middle of a long call; another session does the remaining steps.
    stop = threading.Event()
    stopping = new_session(Delayed({"seconds": STEP_SECONDS, "slower": 1}), WORKERS, 40, stop_requested=stop.is_set)
    stopping.run(1)  # traces, which may take long
    threading.Timer(0.5, stop.set).start()
    began = time.perf_counter()
    progress = stopping.run(39)
    report["stopped"] = {"after": time.perf_counter() - began, "step": stopping.step, "stop": progress.stop}
    stopping.fetch()
    stopping.close()
    rest = new_session(Small({}), WORKERS, 400)
    rest.begin_at(stopping.step)
    rest.run(40 - stopping.step, finish=True)
    report["rest step"] = rest.step

    # A killed worker takes part again after its restart.
    rest.run(20)
    cluster.processes["worker-1"].kill()
    cluster.processes["worker-1"].wait()
    cluster.start("worker", 1)
    rest.run(50)
    rest.run(50, finish=True)
    rest.close()
    report["killed step"] = rest.step

    # Rounds that need two of three equally fast workers.
    backed_up = timed(1)

    # Two servers received gradients in different orders, as may happen at the end of a call: workers wait for the server
    # that has done its rounds, and the other server waits for them.
    before = backed_up.step
    uneven, dropped = [], [backed_up._dropped]
    for counts in DIFFERING:
        uneven.append(backed_up._run_rounds(counts))
        dropped.append(backed_up._dropped)
    backed_up._step += sum(counts[0] for counts in DIFFERING)
    backed_up.run(20, finish=True)
    report["differing"] = {"done": uneven, "steps": backed_up.step - before}
    report["dropped differing"] = [after - before for before, after in pairwise(dropped)]

    # Rounds continue without a backup worker, which takes part again after its restart.
    backed_up.run(20)
    cluster.processes["worker-2"].kill()
    cluster.processes["worker-2"].wait()
    before = backed_up.step
    backed_up.run(20)
    report["rounds without it"] = backed_up.step - before
    cluster.start("worker", 2)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and "worker-2" not in {w.task for w in backed_up.run(20).workers}:
        pass
    report["backup is back"] = time.monotonic() < deadline
    backed_up.run(20, finish=True)
    backed_up.close()
    return report


if __name__ == "__main__":
    main(sys.argv[1])
