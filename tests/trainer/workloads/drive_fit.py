"""Trains compiled Keras models on a strategy, and with `fit` on the same batches; prints, as JSON, how they differ, and why some are refused.

Usage: drive_fit.py STRATEGY [INDEX ADDRESS ADDRESS]. Two replicas are compared with one that has their batches joined, parameter servers
with a worker with one. It runs in its own process, because a strategy configures TensorFlow for a whole process.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(Path(__file__).with_name("own_code"))]

from benchmarks.processes import free_addresses  # noqa: E402
from tests.trainer.engine.servers_here import ENVIRONMENT, servers  # noqa: E402
from trainer import parent_death  # noqa: E402

# With two replicas, the models without a mean over a replica's own batch, which differs from the mean over both batches.
SAME = {
    "mirrored": ("losses", "outputs", "scaled", "clipped", "averaged", "bounded", "partly", "guide", "tracked", "computed", "counted"),
    "multi_worker_mirrored": ("guide", "tracked", "computed"),
    "parameter_server": ("losses", "masked", "one_hot", "bounded", "added", "computed"),
}
REFUSED = {
    "mirrored": ("gathered", "overwritten", "summed", "twice", "nested", "perturbed"),
    "multi_worker_mirrored": ("twice", "nested", "perturbed"),
    "parameter_server": ("gathered", "guide", "moving", "scaled"),
}


def main(strategy: str, *task: str) -> None:
    parent_death.die_with_parent()
    os.environ |= {**ENVIRONMENT, "TF_CPP_MIN_LOG_LEVEL": "3"}
    with _cluster(strategy, task) as processes:
        print(json.dumps(train_all(strategy)), flush=True)
        for process in processes:
            process.wait(timeout=60)
    os._exit(0)  # TensorFlow's own threads may wait for servers that are gone


@contextmanager
def _cluster(strategy: str, task: tuple[str, ...]) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Set TF_CONFIG, and start the tasks that this one trains with; yield those that end by themselves."""
    if strategy == "parameter_server":
        with tempfile.TemporaryDirectory() as scratch, servers(scratch, ps=1, workers=1) as cluster:
            os.environ["TF_CONFIG"] = cluster.tf_config
            yield []
        return
    others = []
    if strategy == "multi_worker_mirrored":
        index, *addresses = task or ("0", *free_addresses(2))
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": int(index)}})
        if not task:
            environment = {**os.environ, **parent_death.child_environment()}
            command = [sys.executable, __file__, strategy, "1", *addresses]
            others = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)]
    yield others


def train_all(strategy: str) -> dict[str, Any]:
    from trainer.captured_import import capture_import

    with capture_import():
        import keras  # noqa: F401
        import tensorflow  # noqa: F401, ICN001

    from tests.trainer.workloads.fitting import by_keras, by_trainer, workload
    from trainer.engine.collectives import all_reduce
    from trainer.workloads.errors import WorkloadError

    models, make_session, index = import_module("fitted").MODELS, *_session_factory(strategy)
    report: dict[str, Any] = {}
    for number, name in enumerate(SAME[strategy]):
        # A collective's number belongs to vectors of one size, as in a program that trains one model.
        for constant in ("_BARRIER", "_FIRST_OF_BROADCAST", "_CONTROL", "_GRADIENTS"):
            setattr(all_reduce, constant, getattr(all_reduce, constant) + 1000 * number)
        keras_model = workload(models[name])
        ours = by_trainer(make_session(keras_model), keras_model)
        if index == 0:
            theirs = by_keras(models[name])
            report[name] = {**ours.differences(theirs), "reported_loss": abs(ours.reported["loss"] - theirs.reported["loss"])}
    for name in REFUSED[strategy]:
        keras_model = workload(models[name])
        try:
            by_trainer(make_session(keras_model), keras_model)
        except WorkloadError as error:
            report[name] = str(error)
    return report


def _session_factory(strategy: str) -> tuple[Any, int]:
    """Return a function that makes a session for a workload, and the index of this task."""
    from tests.trainer.engine.drivers import keep_sessions
    from tests.trainer.workloads.fitting import BATCH, config_of
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.mirrored import MirroredSession, devices
    from trainer.engine.parameter_server.asynchronous import AsynchronousSession
    from trainer.engine.parameter_server.worker_pool import connect
    from trainer.engine.replicated import ReplicatedSession
    from trainer.tf_config import parse

    if strategy == "parameter_server":
        connection = connect(parse(os.environ["TF_CONFIG"]))
        return lambda model: AsynchronousSession(model, config_of(strategy=strategy), connection, lambda: False), 0
    config = config_of(BATCH // 2, strategy)
    if strategy == "mirrored":
        keep_sessions()
        names = devices(2)
        return lambda model: MirroredSession(model, config, names), 0
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    all_reduce = AllReduce(2, index)
    return lambda model: ReplicatedSession(model, config, all_reduce), index


if __name__ == "__main__":
    main(*sys.argv[1:])
