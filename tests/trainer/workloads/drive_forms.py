"""Trains every form of a user's own workload on one strategy, with real tasks; prints, as JSON, the results of each.

Usage: drive_forms.py STRATEGY SCRATCH [TF_CONFIG]. It runs in its own process, because a strategy configures TensorFlow for a whole process.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(Path(__file__).with_name("own_code"))]

from tests.trainer.engine.servers_here import ENVIRONMENT, free_ports, servers  # noqa: E402
from trainer import parent_death  # noqa: E402

STEPS = 150

# workload -> its params. Those of EXACT have no randomness: on every strategy of one replica the weights are the same.
FORMS: dict[str, dict[str, Any]] = {
    "compiled:model": {"units": 12},
    "compiled:random": {},
    "outputs:model": {},
    "subclassed:model": {},
    "functions:two": {},
    "functions:three": {},
    "functions:four": {"units": 12},
    "points:Points": {},
}
# Two processes on few cores are slow, so they train only some of the forms.
SOME_FORMS = {
    "multi_worker_mirrored": (
        "compiled:random",
        "outputs:model",
        "subclassed:model",
        "functions:two",
        "functions:three",
        "functions:four",
        "points:Points",
    )
}
# Ends the name of a form that is also trained with synchronous updates.
SYNC = ", synchronous"
EXACT = ("compiled:model", "outputs:model", "subclassed:model", "functions:two", "functions:four", "points:Points")

# Sessions must not be torn down while their servers are gone.
alive: list[Any] = []


def forms(strategy: str) -> list[str]:
    """Return the forms that are trained on a strategy."""
    synchronous = [f"functions:four{SYNC}"] if strategy == "parameter_server" else []
    return [name for name in FORMS if name in SOME_FORMS.get(strategy, FORMS)] + synchronous


def main(strategy: str, scratch: str, tf_config: str = "") -> None:
    parent_death.die_with_parent()
    os.environ |= ENVIRONMENT
    # As few as the launcher plans, to check that no pipeline waits for a thread that waits for the pipeline.
    os.environ["TF_NUM_INTEROP_THREADS"] = {"mirrored": "2", "parameter_server": "4"}.get(strategy, "1")
    try:
        with _others(strategy, scratch, tf_config) as (own_config, processes):
            if own_config:
                os.environ["TF_CONFIG"] = own_config
            print(json.dumps(train_all(strategy, scratch, own_config)), flush=True)
            for process in processes:
                process.wait(timeout=30)
    except Exception:  # noqa: BLE001 - the test shows it; this process exits as the trainer does
        traceback.print_exc()
    finally:
        os._exit(0)


@contextmanager
def _others(strategy: str, scratch: str, tf_config: str) -> Iterator[tuple[str, Collection["subprocess.Popen[bytes]"]]]:
    """Start the tasks that this one trains with; yield its TF_CONFIG, empty without other tasks, and their processes."""
    if strategy == "parameter_server":
        with servers(scratch, ps=2, workers=1) as cluster:
            yield cluster.tf_config, cluster.processes.values()
    elif strategy == "multi_worker_mirrored" and not tf_config:
        sockets, addresses = free_ports(2)
        own_config, other_config = (
            json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}}) for i in range(2)
        )
        environment = {**os.environ, **parent_death.child_environment()}
        other = subprocess.Popen([sys.executable, __file__, strategy, scratch, other_config], env=environment, stdout=subprocess.DEVNULL)
        try:
            yield own_config, [other]
        finally:
            other.kill()
            for reserved in sockets:
                reserved.close()
    else:
        yield tf_config, []


def train_all(strategy: str, scratch: str, tf_config: str) -> dict[str, Any]:
    from trainer.captured_import import capture_import

    with capture_import():  # as the trainer does: the garbage collector then ignores imported objects
        import keras  # noqa: F401
        import tensorflow as tf

    from trainer.engine import model_ops
    from trainer.engine.checkpoints import Checkpoints
    from trainer.engine.collectives import all_reduce
    from trainer.engine.parameter_server import servers
    from trainer.engine.train_config import train_config
    from trainer.settings import Train, TrainerSettings
    from trainer.tf_config import parse
    from trainer.workloads.loading import load_workload

    make_session = _session_factory(strategy, tf_config)
    report: dict[str, Any] = {}
    for number, name in enumerate(forms(strategy)):
        # A collective's number belongs to vectors of one size, as in a program that trains one model.
        for constant in ("_BARRIER", "_FIRST_OF_BROADCAST", "_CONTROL", "_GRADIENTS"):
            setattr(all_reduce, constant, getattr(all_reduce, constant) + 1000 * number)
        form = name.removesuffix(SYNC)
        sync = {"replicas_to_aggregate": 1} if form != name else None
        train = Train.model_validate({"workload": form, "params": FORMS[form], "steps": STEPS, "batch_size": 16, "sync": sync})
        work = train_config(
            TrainerSettings.model_validate(
                {"run": "drive", "strategy": strategy, "run_dir": scratch, "scratch_dir": scratch, "train": train}
            )
        )
        workload = load_workload(work.train)
        session = make_session(workload, work)
        alive.append(session)
        session.begin_at(0)
        losses = []
        while session.step < STEPS:
            losses.append(session.run(STEPS // 5).loss)
        session.flush()
        session.fetch()
        evaluated = model_ops.evaluation(workload, session.model, 64)()
        trained = _weights(session.model)
        report[name] = {"losses": losses, "evaluated": evaluated, "weights": [value.ravel().tolist() for value in trained]}
        if session.is_chief:
            checkpoints = Checkpoints(Path(scratch) / name.replace(":", "-"), session.model, session.optimizer, 1)
            checkpoints.save(STEPS)
            # As an evaluator does, without the optimizer, and as a task that starts again.
            model_only = tf.train.Checkpoint(model=session.model)
            _clear(session.model)
            model_only.restore(str(checkpoints.latest)).assert_existing_objects_matched().expect_partial()
            report[name]["lost_without_optimizer"] = _largest_difference(trained, _weights(session.model))
            _clear(session.model)
            restored = checkpoints.restore(print)
            report[name]["restored"] = restored.step if restored else None
            report[name]["lost"] = _largest_difference(trained, _weights(session.model))
    for session in alive:
        session.close()
    if strategy == "parameter_server":
        servers.stop_all(parse(tf_config), scratch)
    return report


def _weights(model: Any) -> list[Any]:
    import numpy as np

    return [np.asarray(variable.value).astype(float) for variable in model.variables if variable.value.dtype.is_floating]


def _clear(model: Any) -> None:
    import tensorflow as tf

    for variable in model.variables:
        variable.value.assign(tf.zeros_like(variable.value))


def _largest_difference(first: list[Any], second: list[Any]) -> float:
    return max(float(abs(one - other).max()) for one, other in zip(first, second, strict=True))


def _session_factory(strategy: str, tf_config: str) -> Any:
    from tests.trainer.engine.drivers import keep_sessions
    from trainer.engine import mirrored
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.parameter_server.asynchronous import AsynchronousSession
    from trainer.engine.parameter_server.synchronous import SynchronousSession
    from trainer.engine.parameter_server.worker_pool import connect
    from trainer.engine.replicated import ReplicatedSession
    from trainer.tf_config import parse

    if strategy == "parameter_server":
        connection = connect(parse(tf_config))
        return lambda workload, work: (SynchronousSession if work.train.sync else AsynchronousSession)(
            workload, work, connection, lambda: False
        )
    if strategy == "mirrored":
        keep_sessions()
        names = mirrored.devices(2)
        return lambda workload, work: mirrored.MirroredSession(workload, work, names)
    all_reduce_group = AllReduce(2, json.loads(tf_config)["task"]["index"]) if tf_config else AllReduce()
    return lambda workload, work: ReplicatedSession(workload, work, all_reduce_group)


if __name__ == "__main__":
    main(*sys.argv[1:])
