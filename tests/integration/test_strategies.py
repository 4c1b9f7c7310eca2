"""The same work under every strategy gives the same weights, and an evaluator sees each run's last checkpoint.

The workload is user code: `code` and `package.module:name`, as a user would name their own.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.integration.running import ROOT, Run, started
from tests.trainer.tensorboard_reader import read_events
from tests.trainer.test_socket_filter import address_for_others, reachable
from trainer.events import Event

STEPS = 40
WORKERS = ("worker-0", "worker-1")
WORKLOAD: dict[str, Any] = {
    "workload": "small:Small",
    "steps": STEPS,
    "params": {"normalised": False},
    "evaluate": {"every_steps": 0},
    "export": {"formats": []},
}


def spec(name: str, strategy: str, roles: dict[str, Any], **train: Any) -> dict[str, Any]:
    code = str(ROOT / "tests" / "trainer" / "engine")
    return {"version": 1, "name": name, "strategy": strategy, "roles": roles, "code": code, "train": WORKLOAD | train}


def finished(run_spec: dict[str, Any], directory: Path) -> Run:
    with started(run_spec, directory) as run:
        assert run.launcher("wait", run.name, check=False).returncode == 0, run.status()
        return run


def weights(run: Run) -> dict[str, Any]:
    """Return model and optimizer of the run's last checkpoint."""
    return weights_in(run.directory / "checkpoints", STEPS)


def weights_in(directory: Path, step: int) -> dict[str, Any]:
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(directory / f"ckpt-{step}"))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith(("model", "optimizer"))]
    return {name: reader.get_tensor(name) for name in names}


CASES = [
    pytest.param("mirrored", {"chief": {}}, 8, id="mirrored"),
    pytest.param("parameter_server", {"chief": {}, "ps": {}, "worker": {}}, 16, id="parameter_server-one-worker"),
]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return weights(finished(spec("single", "single", {"chief": {}}, batch_size=16), tmp_path_factory.mktemp("single")))


@pytest.mark.parametrize("strategy,roles,batch_size", CASES)
def test_replicas_together_learn_what_one_learns_from_the_whole_batch(
    single: dict[str, Any], strategy: str, roles: dict[str, Any], batch_size: int, tmp_path: Path
) -> None:
    assert_same(weights(finished(spec("several", strategy, roles, batch_size=batch_size), tmp_path)), single)


def assert_same(several: dict[str, Any], single: dict[str, Any]) -> None:
    assert several.keys() == single.keys()
    assert len(single) >= 10
    for name, value in single.items():
        # Sums in another order differ in the last bits, and Adam's division makes a little more of that.
        np.testing.assert_allclose(several[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


def test_settings_of_gradients_and_precision_apply_to_an_all_reduce_as_a_whole(tmp_path: Path) -> None:
    """bfloat16 has 8 bits, and each replica rounds its own sums."""
    settings = {
        "gradients": {"clip_global_norm": 0.05, "accumulate": 2},
        "precision": "mixed_bfloat16",
        "jit_compile": True,
        "params": {"optimizer": "SGD", "arguments": {"learning_rate": 1.0}},
    }
    one_task = weights(finished(spec("one-task", "single", {"chief": {}}, batch_size=16, **settings), tmp_path))
    roles: dict[str, Any] = {"chief": {}, "worker": {}}  # equivalent to two workers, which the tests below have
    together = weights(finished(spec("together", "multi_worker_mirrored", roles, batch_size=8, **settings), tmp_path))
    assert together.keys() == one_task.keys()
    for name, value in one_task.items():
        np.testing.assert_allclose(together[name], value, rtol=0.02, atol=0.02, err_msg=name)


EVALUATED = {"checkpoint": {"every_steps": 10}, "evaluate": {"every_steps": 10}}
# One of the two readers takes ten times as long for a batch; both give the same batches.
SLOW = {"workload": "small:Delayed", "steps_per_execution": 10, "report_every_steps": 10}
SERVED = 4 * STEPS  # of both workers together, most of them by the fast one


@dataclass(frozen=True)
class AllReduceRun:
    """A finished run of two workers of an all-reduce and an evaluator, a copy of its directory as it ended, and what was observed of it."""

    run: Run
    copy: Path
    status: dict[str, Any]
    reached: dict[str, tuple[bool, bool | None]]  # a worker's port, from here and from elsewhere; None without an address for that


@pytest.fixture(scope="module")
def all_reduce(tmp_path_factory: pytest.TempPathFactory) -> AllReduceRun:
    directory, roles = tmp_path_factory.mktemp("in-step"), {"worker": {"replicas": 2}, "evaluator": {}}
    slow = SLOW | {"params": WORKLOAD["params"] | {"seconds": 0.02, "slower": 10}}
    with started(spec("moving", "multi_worker_mirrored", roles, batch_size=8, **slow, **EVALUATED), directory) as run:
        ports = {task["name"]: int(task["address"].rpartition(":")[2]) for task in run.status()["tasks"] if task["name"] in WORKERS}
        # Their servers listen by then, and no step is done: the run does not end while its ports are checked.
        run.until("both workers to be ready", lambda: all(run.events(worker, "ready") for worker in WORKERS))
        others = address_for_others()
        reached = {name: (reachable("127.0.0.1", port), reachable(others, port) if others else None) for name, port in ports.items()}
        assert run.launcher("wait", run.name, check=False).returncode == 0, run.status()
        shutil.copytree(run.directory, directory / "before")
        return AllReduceRun(run, directory / "before", run.status(), reached)


@pytest.fixture(scope="module")
def moved(all_reduce: AllReduceRun) -> Run:
    """The same run, resumed under parameter servers with two workers and an evaluator."""
    run = all_reduce.run
    file = run.runs.parent / "moving.yaml"
    changed = yaml.safe_load(file.read_text())
    roles = {"chief": {}, "ps": {}, "worker": {"replicas": 2}, "evaluator": {}}
    changed["train"]["params"]["seconds"] = 0.04
    changed["train"] |= {"checkpoint": {"every_steps": STEPS}, "evaluate": {"every_steps": STEPS}}
    file.write_text(yaml.safe_dump(changed | {"strategy": "parameter_server", "roles": roles}))
    run.launcher("up", str(file), "--resume", "--set", f"train.steps={STEPS + SERVED}")
    return run


def progress(run: Run, worker: str) -> list[Event]:
    """Return a worker's reports; on parameter_server the chief makes them."""
    events = [event for task in ("chief", *WORKERS) for event in run.events(task, "progress")]
    return [event for event in events if event["task"] == worker]


def assert_evaluated(events: list[Event], directory: Path, last: int) -> None:
    """Check that an evaluator saw the last checkpoint, and none twice."""
    steps = [event["step"] for event in events]
    assert steps[-1] == last
    assert steps == sorted(set(steps))
    assert last in dict(read_events(directory / "logs" / "eval").scalars("accuracy"))


def test_two_workers_of_an_all_reduce_learn_what_one_learns_from_the_whole_batch(single: dict[str, Any], all_reduce: AllReduceRun) -> None:
    assert_same(weights_in(all_reduce.copy / "checkpoints", STEPS), single)


def test_two_workers_of_an_all_reduce_report_how_long_they_wait_for_input_and_for_each_other(all_reduce: AllReduceRun) -> None:
    copy = Run(all_reduce.copy.name, all_reduce.copy.parent)
    fast, slow = (progress(copy, worker) for worker in WORKERS)
    assert all(0 <= event["input_wait"] <= 1 for event in (*fast, *slow))
    # The last call of each, because the first one traces. Both wait for the slow reader.
    assert slow[-1]["input_wait"] > 0.5
    assert fast[-1]["input_wait"] < slow[-1]["input_wait"]
    assert fast[-1]["peer_wait"] > fast[-1]["input_wait"]


@pytest.mark.skipif(sys.platform != "linux", reason="socket filters are Linux's; docs/architecture.md says what to do elsewhere")
def test_no_task_of_an_all_reduce_is_reachable_from_other_machines(all_reduce: AllReduceRun) -> None:
    if None in (others for _, others in all_reduce.reached.values()):
        pytest.skip("this machine has no address but loopback")
    assert all_reduce.reached == {"worker-0": (True, False), "worker-1": (True, False)}


def test_an_evaluator_sees_the_last_checkpoint_of_an_all_reduce(all_reduce: AllReduceRun) -> None:
    assert_evaluated(Run(all_reduce.copy.name, all_reduce.copy.parent).events("evaluator", "evaluated"), all_reduce.copy, STEPS)
    assert {task["name"]: task["exit_code"] for task in all_reduce.status["tasks"]} == {"worker-0": 0, "worker-1": 0, "evaluator": 0}


def test_a_run_resumes_under_another_strategy(moved: Run) -> None:
    assert moved.events("chief", "restored")[-1]["step"] == STEPS
    assert moved.status()["step"] == STEPS + SERVED


def test_every_worker_of_servers_reports_how_long_it_waits_for_input(moved: Run) -> None:
    first, second = ([event for event in moved.events("chief", "progress") if event["task"] == worker] for worker in WORKERS)
    assert all(0 <= event["input_wait"] <= 1 for event in (*first, *second))
    assert first
    assert second[-1]["input_wait"] > 0.5


def test_an_evaluator_sees_the_last_checkpoint_of_servers(moved: Run) -> None:
    evaluated = [event for event in moved.events("evaluator", "evaluated") if event["step"] > STEPS]
    assert_evaluated(evaluated, moved.directory, STEPS + SERVED)
    assert {task["exit_code"] for task in moved.status()["tasks"]} == {0}
