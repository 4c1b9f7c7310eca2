"""Trains small models on real ps and worker processes; prints, as JSON, the differences from one process, and what callbacks see.

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

# Sessions by name: the workload's parameters, and settings of `train`; all without randomness, so that one worker equals one process.
SESSIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "adam": ({}, {}),
    "adamw-averages, clipnorm, schedule, normalised, bfloat16": (
        {
            "optimizer": "AdamW",
            "arguments": {"weight_decay": 0.01, "use_ema": True, "ema_momentum": 0.9, "clipnorm": 0.01},
            "schedule": True,
            "normalised": True,
        },
        {"precision": "mixed_bfloat16"},
    ),
    "sgd-momentum, normalised, compiled": (
        {"optimizer": "SGD", "arguments": {"momentum": 0.9}, "normalised": True},
        {"jit_compile": True, "gradients": {"accumulate": 2}},
    ),
}

# Sessions whose steps are not unrolled, as a large model's are not: the loop is the same for each optimizer, and an unrolled one starts later.
LOOPED = ("adamw-averages, clipnorm, schedule, normalised, bfloat16",)
assert set(LOOPED) <= SESSIONS.keys()

# Optimizers whose updates on the servers are compared, without a session: the workload's parameters.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "rmsprop, global clipnorm": {"optimizer": "RMSprop", "arguments": {"global_clipnorm": 0.01}},
    "nadam": {"optimizer": "Nadam"},
    "sgd-averages": {"optimizer": "SGD", "arguments": {"use_ema": True, "ema_momentum": 0.9}},
    "averaged-sgd": {"optimizer": "AveragedSGD", "arguments": {"ema_momentum": 0.8}},
    "lamb": {"optimizer": "Lamb"},
    "adamw, undecayed biases": {"optimizer": "AdamW", "arguments": {"weight_decay": 0.5}, "undecayed": ["bias"]},
}
UPDATES = 5


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

    from tests.trainer.engine import served_callbacks
    from tests.trainer.engine.small import Small
    from trainer.engine import model_ops
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.parameter_server import asynchronous, packing, servers
    from trainer.engine.parameter_server.asynchronous import AsynchronousSession
    from trainer.engine.replicated import ReplicatedSession
    from trainer.engine.train_config import TrainConfig, train_config
    from trainer.settings import Train, TrainerSettings
    from trainer.tf_config import parse

    packing.SINGLE_SERVER_BYTES = 0  # so that small models are on both servers, too

    def config_of(steps: int, **settings: Any) -> TrainConfig:
        train = Train.model_validate({"workload": "small:Small", "batch_size": 16, "steps": steps, **settings})
        return train_config(TrainerSettings(run="drive", run_dir=scratch, scratch_dir=scratch, train=train))

    report: dict[str, Any] = {"cases": {}}
    few_operations = asynchronous.FEW_OPERATIONS
    for name, params in OPTIMIZERS.items():
        report["cases"][name] = compare_updates(model_ops.build(Small(params), config_of(UPDATES)), connection.servers)
    for name, (params, settings) in SESSIONS.items():
        keras.config.set_dtype_policy("float32")  # a case's own policy would stay
        local = ReplicatedSession(Small(params), config_of(STEPS, **settings), AllReduce())
        local.begin_at(0)
        for _ in range(3):
            local.run(STEPS // 3)
        asynchronous.FEW_OPERATIONS = 0 if name in LOOPED else few_operations
        remote = AsynchronousSession(Small(params), config_of(STEPS, **settings), connection, lambda: False)
        alive.append(remote)
        remote.begin_at(0)
        before = values(remote)
        remote.fetch()
        roundtrip = difference(before, values(remote))
        while remote.step < STEPS:
            # One call at a time: a worker runs its calls one after the other.
            remote.run(STEPS // 3)
        remote.fetch()
        remote.close()
        report["cases"][name] = {"difference": difference(values(local), values(remote)), "roundtrip": roundtrip, "step": remote.step}
    # Workers draw their own random numbers, so these only have to learn: one in a loop, one unrolled and compiled.
    report["dropout_losses"] = {}
    for name, compiled, asynchronous.FEW_OPERATIONS in ("plain", False, 0), ("compiled", True, few_operations):
        dropout = AsynchronousSession(Small({"dropout": True}), config_of(150, jit_compile=compiled), connection, lambda: False)
        alive.append(dropout)
        dropout.begin_at(0)
        losses = report["dropout_losses"][name] = []
        while dropout.step < 150:
            losses.append(dropout.run(50).loss)
        dropout.close()
    report["callbacks"] = served_callbacks.report(connection, Path(scratch, "callbacks"), alive)
    report["ended"] = {
        kind: end_of_data_error(params, config_of(STEPS), connection) for kind, params in (("known", {}), ("unknown", {"unknown": True}))
    }
    return {**report, "missed": servers.stop_all(parse(tf_config), scratch)}


def compare_updates(built: Any, servers: int) -> dict[str, Any]:
    """Update a model on the servers and, with the same gradients, in this process; return the report of a session."""
    import numpy as np
    import tensorflow as tf

    from trainer.engine.parameter_server.state import ServerState

    state = ServerState(built.model, built.optimizer, servers)
    before = values(built)
    state.assign_from_chief(0)
    state.copy_to_chief()
    roundtrip = difference(before, values(built))

    @tf.function(autograph=False)
    def update(gradients: list[tf.Tensor]) -> None:
        for group, packed in zip(state.groups, state.packed(gradients), strict=True):
            group.apply(packed)

    random = np.random.default_rng(7)
    for _ in range(UPDATES):
        gradients = [tf.constant(random.normal(size=v.shape).astype(np.float32)) for v in built.model.trainable_variables]
        update(gradients)
        built.optimizer.apply(gradients, built.model.trainable_variables)
    expected = values(built)
    state.copy_to_chief()
    alive.append(state)
    return {"difference": difference(expected, values(built)), "roundtrip": roundtrip, "step": int(state.step.numpy())}


def values(built: Any) -> list[Any]:
    """Return the values of all variables of a session, or of a model and its optimizer."""
    import numpy as np

    return [np.asarray(v.value).astype(float) for v in (*built.model.variables, *built.optimizer.variables)]


def difference(some: list[Any], others: list[Any]) -> float:
    """Return the largest difference between two lists of values."""
    return max(float(abs(a - b).max()) for a, b in zip(some, others, strict=True))


def end_of_data_error(params: dict[str, Any], config: Any, connection: Any) -> str:
    """Return the error if a user's data is too short: before the first step if its length is known, otherwise from a worker."""
    from tests.trainer.engine.small import Ending
    from trainer.engine import data_length
    from trainer.engine.parameter_server.asynchronous import AsynchronousSession
    from trainer.workloads.errors import WorkloadError

    try:
        session = AsynchronousSession(Ending(params), config, connection, lambda: False)
        alive.append(session)
        session.begin_at(0)
        with data_length.translate_end_of_data(config):
            session.run(STEPS)
    except WorkloadError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(sys.argv[1])
