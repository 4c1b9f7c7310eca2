"""Kills training processes midway: the run goes on from the last checkpoint and ends with every step done."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.running import Run, started

STEPS = 4000
ENOUGH = 12_000  # steps that the others are not done with before one that was killed takes part again
SAVE_EVERY = 250
RECOVERY = 60  # seconds; a deadline, not a measure

TRAIN = {
    "workload": "mnist_mlp",
    "steps": STEPS,
    "learning_rate": {"schedule": "cosine"},  # as in examples/mnist-ps.yaml: the last steps are small
    "checkpoint": {"every_steps": SAVE_EVERY},
    "evaluate": {"every_steps": 0},
}


def spec(strategy: str, roles: dict[str, Any]) -> dict[str, Any]:
    return {"version": 1, "name": "recovery", "strategy": strategy, "roles": roles, "train": TRAIN}


PARAMETER_SERVER = spec("parameter_server", {"chief": {}, "ps": {}, "worker": {"replicas": 2}})
MULTI_WORKER = spec("multi_worker_mirrored", {"worker": {"replicas": 2}})


def kill_midway(run: Run, victim: str, chief: str) -> tuple[float, int]:
    """Kill a training process after two checkpoints; return the seconds until steps flow, and the last saved step."""
    run.until("two checkpoints", lambda: len(run.events(chief, "checkpoint")) >= 2)
    killed = run.kill_training_process(victim)
    saved: int = [event["step"] for event in run.events(chief, "checkpoint")][-1]
    run.until(f"{victim} to be started again", lambda: [e for e in run.events(victim, "started") if e["time"] > killed], RECOVERY)

    def flowing() -> Any:
        # A worker is back when it contributes; otherwise the chief's steps are those of all.
        if victim.startswith("worker") and chief == "chief":
            return [e for e in run.events("chief", "progress") + run.events("worker", "progress") if comes_from(e, victim, killed)]
        after = [e for e in run.events(chief, "restored") if e["time"] > killed]
        return after and [e for e in run.events(chief, "progress") if e["time"] > after[-1]["time"]]

    first = run.until("steps to flow again", flowing, RECOVERY)[0]
    return first["time"] - killed, saved


def comes_from(event: dict[str, Any], victim: str, killed: float) -> bool:
    # Two seconds: what the victim had sent before it was killed has been reported by then.
    return bool(event["task"] == victim and event["time"] > killed + 2)


def assert_complete(run: Run, steps: int = STEPS) -> None:
    assert run.launcher("wait", run.name, check=False, timeout=180).returncode == 0
    status = run.status()
    assert status["state"] == "succeeded"
    assert status["step"] == steps
    assert status["metrics"]["accuracy"] >= 0.97


def assert_checkpoints_are_of_their_steps(run: Run) -> None:
    import tensorflow as tf

    for index in run.directory.glob("checkpoints/*.index"):
        reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        iterations = next(name for name in reader.get_variable_to_shape_map() if name.startswith("optimizer/_iterations"))
        assert reader.get_tensor(iterations) == int(index.stem.rpartition("-")[2]), index


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "shape,victim,chief",
    [
        pytest.param(PARAMETER_SERVER, "ps-0", "chief", id="parameter_server-ps"),
        pytest.param(PARAMETER_SERVER, "chief", "chief", id="parameter_server-chief"),
        pytest.param(MULTI_WORKER, "worker-1", "worker-0", id="multi_worker_mirrored-worker"),
        pytest.param(MULTI_WORKER, "worker-0", "worker-0", id="multi_worker_mirrored-chief"),
    ],
)
def test_training_resumes_from_the_last_checkpoint(shape: dict[str, Any], victim: str, chief: str, tmp_path: Path) -> None:
    with started(shape, tmp_path) as run:
        seconds, saved = kill_midway(run, victim, chief)
        print(f"\n{shape['strategy']}: {victim} killed, steps again after {seconds:.1f} s")
        restored = run.events(chief, "restored")
        assert len(restored) == 1
        # The chief may have saved once more between our look and the kill, and not have told of it yet; never is an older one taken.
        told = [e["step"] for e in run.events(chief, "checkpoint") if e["time"] < restored[0]["time"]]
        assert saved <= told[-1] <= restored[0]["step"] <= told[-1] + 2 * SAVE_EVERY
        after = [e["step"] for e in run.events(chief, "progress") if e["time"] > restored[0]["time"]]
        assert min(after) > restored[0]["step"]
        assert run.status()["tasks"]
        assert_complete(run)
        assert_checkpoints_are_of_their_steps(run)
        causes = [r["cause"] for t in run.status()["tasks"] for r in t["restarts"] if t["name"] == victim]
        assert any("SIGKILL" in cause for cause in causes), causes


@pytest.mark.timeout(240)
def test_a_worker_of_parameter_servers_comes_back_alone(tmp_path: Path) -> None:
    with started({**PARAMETER_SERVER, "train": {**TRAIN, "steps": ENOUGH}}, tmp_path) as run:
        seconds, _ = kill_midway(run, "worker-1", "chief")
        print(f"\nparameter_server: worker-1 killed, contributes again after {seconds:.1f} s")
        assert_complete(run, ENOUGH)
        assert run.events("chief", "restored") == []
        assert len(run.events("chief", "started")) == 1
        steps = [event["step"] for event in run.events("chief", "progress") if event["task"] == "chief"]
        assert steps == sorted(steps)
