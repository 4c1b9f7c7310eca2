"""Trains small models on real ps and worker processes and prints, as JSON, how that compares with one process.

Usage: drive_parameter_server.py SCRATCH. It is a process of its own because a chief's connection is for the whole process.
"""

import json
import os
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

STEPS = 30

# Sessions must not be torn down while their servers are gone: TensorFlow would complain of it.
alive: list[Any] = []

# name -> the workload's parameters; all without randomness, so that one worker equals one process.
CASES: dict[str, dict[str, Any]] = {
    "adam": {},
    "adam-schedule": {"schedule": True},
    "sgd-momentum": {"optimizer": "SGD", "arguments": {"momentum": 0.9}},
    "rmsprop": {"optimizer": "RMSprop"},
    "adamw": {"optimizer": "AdamW", "arguments": {"weight_decay": 0.01}},
    "nadam": {"optimizer": "Nadam"},
    "adam-clipnorm": {"arguments": {"clipnorm": 0.01}},
    "adam-global-clipnorm": {"arguments": {"global_clipnorm": 0.01}},
    "sgd-averages": {"optimizer": "SGD", "arguments": {"use_ema": True, "ema_momentum": 0.9}},
    "adam-averages": {"arguments": {"use_ema": True, "ema_momentum": 0.9}},
    "averaged-sgd": {"optimizer": "AveragedSGD", "arguments": {"ema_momentum": 0.8}},
    "lamb": {"optimizer": "Lamb"},
    "batch-normalisation": {"normalised": True},
}


def free_ports(count: int) -> tuple[list[socket.socket], list[str]]:
    held = []
    for _ in range(count):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(("127.0.0.1", 0))
        held.append(one)
    return held, [f"127.0.0.1:{one.getsockname()[1]}" for one in held]


def main(scratch: str) -> None:
    os.environ |= {"TF_GRPC_REUSE_PORT": "1", "GRPC_FAIL_FAST": "use_caller", "TF_NUM_INTRAOP_THREADS": "1", "KERAS_BACKEND": "tensorflow"}
    held, addresses = free_ports(4)
    cluster = {"chief": addresses[:1], "ps": addresses[1:3], "worker": addresses[3:]}
    settings = {"run": "drive", "strategy": "parameter_server", "run_dir": scratch, "scratch_dir": scratch}
    settings["train"] = {"workload": "mnist_mlp"}  # type: ignore[assignment]
    servers = []
    for role, index in (("ps", 0), ("ps", 1), ("worker", 0)):
        config = json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})
        environment = {**os.environ, "TF_CONFIG": config, "TRAINER_SETTINGS": json.dumps(settings)}
        servers.append(subprocess.Popen([sys.executable, "-m", "trainer.task"], env=environment, cwd=ROOT, stdout=subprocess.DEVNULL))
    try:
        report = compare(json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}), scratch)
        report["exit_codes"] = [server.wait(timeout=30) for server in servers]
        print(json.dumps(report), flush=True)
    except Exception:  # noqa: BLE001 - the test shows it; this process leaves as the trainer does
        traceback.print_exc()
    finally:
        for server in servers:
            server.kill()
        for one in held:
            one.close()
        os._exit(0)


def compare(tf_config: str, scratch: str) -> dict[str, Any]:
    import numpy as np

    from tests.trainer.engine.small import Small
    from trainer.engine import servers
    from trainer.engine.asynchronous import AsynchronousSession
    from trainer.engine.job import Job, job
    from trainer.engine.local import LocalSession
    from trainer.engine.ps_workers import connect
    from trainer.engine.ring import Ring
    from trainer.settings import Train, TrainerSettings
    from trainer.tf_config import parse

    task = parse(tf_config)
    connection = connect(task)

    def job_of(steps: int) -> Job:
        train = Train(workload="small:Small", batch_size=16, steps=steps)
        return job(TrainerSettings(run="drive", run_dir=scratch, scratch_dir=scratch, train=train))

    report: dict[str, Any] = {"cases": {}}

    def values(session: Any) -> list[Any]:
        return [np.asarray(v.value).astype(float) for v in (*session.model.variables, *session.optimizer.variables)]

    for name, params in CASES.items():
        local = LocalSession(Small(params), job_of(STEPS), Ring())
        local.push(0)
        for _ in range(3):
            local.run(STEPS // 3)
        remote = AsynchronousSession(Small(params), job_of(STEPS), connection)
        alive.append(remote)
        remote.push(0)
        before = values(remote)
        remote.pull()
        roundtrip = max(float(np.max(np.abs(a - b))) for a, b in zip(before, values(remote), strict=True))
        while remote.step < STEPS:
            # One call at a time: two in flight on one worker would still run one after the other.
            remote.run(STEPS // 3)
        remote.pull()
        remote.close()
        difference = max(float(np.max(np.abs(a - b))) for a, b in zip(values(local), values(remote), strict=True))
        report["cases"][name] = {"difference": difference, "roundtrip": roundtrip, "step": remote.step}
    # Randomness is drawn on the worker: this one is only asked to learn.
    dropout = AsynchronousSession(Small({"dropout": True}), job_of(200), connection)
    alive.append(dropout)
    dropout.push(0)
    losses = []
    while dropout.step < 200:
        losses.append(dropout.run(50).loss)
    dropout.close()
    report["dropout_losses"] = losses
    report["missed"] = servers.stop_all(task, scratch)
    return report


if __name__ == "__main__":
    main(sys.argv[1])
