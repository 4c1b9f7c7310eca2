"""The same work under every strategy gives the same weights, and an evaluator sees each run's last checkpoint.

The workload is user code: `code` and `package.module:Class`, as a user would name their own.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.running import ROOT, Run, started
from tests.trainer.tensorboard_reader import read_events

STEPS = 40
WORKERS = ("worker-0", "worker-1")
WORKLOAD = {"workload": "small:Small", "steps": STEPS, "params": {"normalised": False}, "evaluate": {"every_steps": 0}}


def spec(name: str, strategy: str, roles: dict[str, Any], **train: Any) -> dict[str, Any]:
    code = str(ROOT / "tests" / "trainer" / "engine")
    return {"version": 1, "name": name, "strategy": strategy, "roles": roles, "code": code, "train": WORKLOAD | train}


def finished(shape: dict[str, Any], directory: Path) -> Run:
    with started(shape, directory) as run:
        assert run.launcher("wait", run.name, check=False, timeout=100).returncode == 0, run.status()
        return run


def weights(run: Run) -> dict[str, Any]:
    """Return model and optimizer of the run's last checkpoint."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(run.directory / "checkpoints"))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith(("model", "optimizer"))]
    return {name: reader.get_tensor(name) for name in names}


SHAPES = [
    pytest.param("mirrored", {"chief": {}}, 8, id="mirrored"),
    pytest.param("multi_worker_mirrored", {"worker": {"replicas": 2}}, 8, id="multi_worker_mirrored"),
    pytest.param("multi_worker_mirrored", {"chief": {}, "worker": {}}, 8, id="multi_worker_mirrored-with-chief"),
    pytest.param("parameter_server", {"chief": {}, "ps": {}, "worker": {}}, 16, id="parameter_server-one-worker"),
]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return weights(finished(spec("single", "single", {"chief": {}}, batch_size=16), tmp_path_factory.mktemp("single")))


@pytest.mark.parametrize("strategy,roles,batch_size", SHAPES)
def test_replicas_together_learn_what_one_learns_from_the_whole_batch(
    single: dict[str, Any], strategy: str, roles: dict[str, Any], batch_size: int, tmp_path: Path
) -> None:
    several = weights(finished(spec("several", strategy, roles, batch_size=batch_size), tmp_path))
    assert several.keys() == single.keys()
    assert len(single) >= 10
    for name, value in single.items():
        # Sums in another order differ in the last bits, and Adam's division makes a little more of that.
        np.testing.assert_allclose(several[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


def test_all_that_is_set_about_gradients_and_precision_holds_for_tasks_in_step_together(tmp_path: Path) -> None:
    """bfloat16 has 8 bits, and each replica rounds its own sums."""
    chosen = {
        "gradients": {"clip_global_norm": 0.05, "accumulate": 2},
        "precision": "mixed_bfloat16",
        "jit_compile": True,
        "params": {"optimizer": "SGD", "arguments": {"learning_rate": 1.0}},
    }
    alone = weights(finished(spec("alone", "single", {"chief": {}}, batch_size=16, **chosen), tmp_path))
    together = weights(finished(spec("together", "multi_worker_mirrored", {"worker": {"replicas": 2}}, batch_size=8, **chosen), tmp_path))
    assert together.keys() == alone.keys()
    for name, value in alone.items():
        np.testing.assert_allclose(together[name], value, rtol=0.02, atol=0.02, err_msg=name)


@pytest.mark.parametrize(
    "strategy,roles,steps",
    [
        # Steps of both together, most of them the other one's.
        ("parameter_server", {"chief": {}, "ps": {}, "worker": {"replicas": 2}}, 8 * STEPS),
        ("multi_worker_mirrored", {"worker": {"replicas": 2}}, STEPS),
    ],
)
def test_every_task_tells_how_long_it_waits_for_input(strategy: str, roles: dict[str, Any], steps: int, tmp_path: Path) -> None:
    """One reader of two takes ten times as long for a batch."""
    slow = {"workload": "small:Delayed", "params": {"seconds": 0.02, "slower": 10}, "steps_per_execution": 10, "report_every_steps": 10}
    run = finished(spec("waiting", strategy, roles, steps=steps, **slow), tmp_path)
    # On parameter_server the chief tells of its workers.
    events = [event for task in run.status()["tasks"] for event in run.events(task["name"], "progress")]
    waits = {name: [event["input_wait"] for event in events if event["task"] == name] for name in WORKERS}
    assert all(0 <= wait <= 1 for of_one in waits.values() for wait in of_one)
    # The last call of each: the first one traces.
    assert waits["worker-1"][-1] > 0.5
    if strategy == "multi_worker_mirrored":
        assert waits["worker-0"][-1] < waits["worker-1"][-1] / 2
        peers = [event["peer_wait"] for event in events if event["task"] == "worker-0"]
        assert peers[-1] > 0.4


@pytest.mark.parametrize(
    "strategy,roles",
    [
        ("parameter_server", {"chief": {}, "ps": {}, "worker": {}, "evaluator": {}}),
        ("multi_worker_mirrored", {"worker": {"replicas": 2}, "evaluator": {}}),
    ],
)
def test_an_evaluator_sees_the_last_checkpoint(strategy: str, roles: dict[str, Any], tmp_path: Path) -> None:
    run = finished(spec("evaluated", strategy, roles, checkpoint={"every_steps": 10}, evaluate={"every_steps": 10}), tmp_path)
    steps = [event["step"] for event in run.events("evaluator", "evaluated")]
    assert steps[-1] == STEPS
    assert steps == sorted(set(steps))
    evaluated = read_events(run.directory / "logs" / "eval").scalars("accuracy")
    assert STEPS in dict(evaluated)
    assert {task["name"]: task["exit_code"] for task in run.status()["tasks"]} == {task["name"]: 0 for task in run.status()["tasks"]}


def test_a_run_goes_on_under_another_strategy(tmp_path: Path) -> None:
    finished(spec("moving", "multi_worker_mirrored", {"worker": {"replicas": 2}}, batch_size=8), tmp_path)
    file = tmp_path / "moving.yaml"
    file.write_text(
        file.read_text()
        .replace("multi_worker_mirrored", "parameter_server")
        .replace("worker:\n    replicas: 2", "chief: {}\n  ps: {}\n  worker: {}")
    )
    run = Run("moving", tmp_path / "runs")
    run.launcher("up", str(file), "--resume", "--set", "train.steps=80", timeout=100)
    assert run.events("chief", "restored")[-1]["step"] == STEPS
    assert run.status()["step"] == 80
