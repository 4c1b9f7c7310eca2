"""Trains small models on real ps and worker processes; prints, as JSON, the differences from one process.

Usage: drive_parameter_server.py SCRATCH. It is a process of its own because a chief's connection is for the whole process.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

STEPS = 30

alive: list[Any] = []  # keeps the sessions: TensorFlow complains if one is destroyed after its servers

# name -> the workload's parameters; all without randomness, so that one worker equals one process.
CASES: dict[str, dict[str, Any]] = {
    "adam": {},
    "sgd-momentum, normalised": {"optimizer": "SGD", "arguments": {"momentum": 0.9}, "normalised": True},
    "rmsprop, global clipnorm": {"optimizer": "RMSprop", "arguments": {"global_clipnorm": 0.01}},
    "nadam": {"optimizer": "Nadam"},
    "sgd-averages, bfloat16": {"optimizer": "SGD", "arguments": {"use_ema": True, "ema_momentum": 0.9}},
    "adamw-averages, clipnorm, schedule": {
        "optimizer": "AdamW",
        "arguments": {"weight_decay": 0.01, "use_ema": True, "ema_momentum": 0.9, "clipnorm": 0.01},
        "schedule": True,
    },
    "averaged-sgd": {"optimizer": "AveragedSGD", "arguments": {"ema_momentum": 0.8}},
    "lamb": {"optimizer": "Lamb"},
    "compiled": {"normalised": True},
}

# Cases whose steps are unrolled, as a small model's are: the loop is the same for each optimizer, and an unrolled one starts later.
UNROLLED = ("adam", "sgd-averages, bfloat16", "compiled")
assert set(UNROLLED) <= CASES.keys()

# Settings of `train` for some of them.
SETTINGS: dict[str, dict[str, Any]] = {
    "compiled": {"jit_compile": True, "gradients": {"accumulate": 2}},
    "sgd-averages, bfloat16": {"precision": "mixed_bfloat16"},
}


def main(scratch: str) -> None:
    from tests.trainer.engine.servers_here import servers

    try:
        with servers(scratch, ps=2, workers=1) as cluster:
            report = compare(cluster.tf_config, scratch)
            report["exit_codes"] = [process.wait(timeout=30) for process in cluster.processes.values()]
            print(json.dumps(report), flush=True)
    except Exception:  # noqa: BLE001 - the test shows it; this process leaves as the trainer does
        traceback.print_exc()
    finally:
        os._exit(0)


def compare(tf_config: str, scratch: str) -> dict[str, Any]:
    from tests.trainer.engine.drivers import connect_to_servers

    connection = connect_to_servers(tf_config)
    import keras
    import numpy as np

    from tests.trainer.engine.small import Small
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.job import Job, job
    from trainer.engine.parameter_server import asynchronous, packing, servers
    from trainer.engine.parameter_server.asynchronous import AsynchronousSession
    from trainer.engine.replicated import LocalSession
    from trainer.settings import Train, TrainerSettings
    from trainer.tf_config import parse

    packing.SINGLE_SERVER_BYTES = 0  # so that small models are on both servers, too

    def job_of(steps: int, **settings: Any) -> Job:
        train = Train.model_validate({"workload": "small:Small", "batch_size": 16, "steps": steps, **settings})
        return job(TrainerSettings(run="drive", run_dir=scratch, scratch_dir=scratch, train=train))

    report: dict[str, Any] = {"cases": {}, "dropout_losses": {}}

    def values(session: Any) -> list[Any]:
        return [np.asarray(v.value).astype(float) for v in (*session.model.variables, *session.optimizer.variables)]

    few_operations = asynchronous.FEW_OPERATIONS
    for name, params in CASES.items():
        settings = SETTINGS.get(name, {})
        keras.config.set_dtype_policy("float32")  # a case's own policy would stay
        local = LocalSession(Small(params), job_of(STEPS, **settings), AllReduce())
        local.begin_at(0)
        for _ in range(3):
            local.run(STEPS // 3)
        asynchronous.FEW_OPERATIONS = few_operations if name in UNROLLED else 0
        remote = AsynchronousSession(Small(params), job_of(STEPS, **settings), connection, lambda: False)
        alive.append(remote)
        remote.begin_at(0)
        before = values(remote)
        remote.fetch()
        roundtrip = max(float(np.max(np.abs(a - b))) for a, b in zip(before, values(remote), strict=True))
        while remote.step < STEPS:
            # One call at a time: a worker runs its calls one after the other.
            remote.run(STEPS // 3)
        remote.fetch()
        remote.close()
        difference = max(float(np.max(np.abs(a - b))) for a, b in zip(values(local), values(remote), strict=True))
        report["cases"][name] = {"difference": difference, "roundtrip": roundtrip, "step": remote.step}
    # Workers draw their own random numbers, so these only have to learn: one in a loop, the other one unrolled, as is the rest of this function.
    for compiled, asynchronous.FEW_OPERATIONS in (False, 0), (True, few_operations):
        dropout = AsynchronousSession(Small({"dropout": True}), job_of(150, jit_compile=compiled), connection, lambda: False)
        alive.append(dropout)
        dropout.begin_at(0)
        losses = []
        while dropout.step < 150:
            losses.append(dropout.run(50).loss)
        dropout.close()
        report["dropout_losses"]["compiled" if compiled else "plain"] = losses
    report["ended"] = {
        kind: end_of_data_error(params, job_of(STEPS), connection) for kind, params in (("known", {}), ("unknown", {"unknown": True}))
    }
    return {**report, "missed": servers.stop_all(parse(tf_config), scratch)}


def end_of_data_error(params: dict[str, Any], job: Any, connection: Any) -> str:
    """Return the error if a user's data is too short: before the first step if its length is known, otherwise from a worker."""
    from tests.trainer.engine.small import Ending
    from trainer.engine import data_length
    from trainer.engine.parameter_server.asynchronous import AsynchronousSession
    from trainer.workloads.errors import WorkloadError

    try:
        session = AsynchronousSession(Ending(params), job, connection, lambda: False)
        alive.append(session)
        session.begin_at(0)
        with data_length.translate_end_of_data(job):
            session.run(STEPS)
    except WorkloadError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(sys.argv[1])
