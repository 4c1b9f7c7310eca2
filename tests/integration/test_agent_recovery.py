"""Kills tasks of gridworld_dqn midway: a worker costs its moves alone, without the ps or the chief the last checkpoint holds."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.running import Run, started

STEPS, SAVE_EVERY = 20_000, 2000
ENOUGH = 40_000  # moves that one worker has not made before the other one takes part again
RECOVERY = 60  # seconds; a deadline, not a measure
SPEC: dict[str, Any] = {
    "version": 1,
    "name": "agent",
    "strategy": "parameter_server",
    "roles": {"chief": {}, "ps": {}, "worker": {"replicas": 2}},
    "train": {
        "workload": "gridworld_dqn",
        "steps": STEPS,
        "params": {"filters": [4, 8, 8], "hidden": 32, "random_steps": 1000, "replay": 10_000},
        "checkpoint": {"every_steps": SAVE_EVERY},
        "evaluate": {"every_steps": 0},
        "summaries": {"every_steps": 0},
    },
}


def kill(run: Run, victim: str) -> float:
    run.until("two checkpoints", lambda: len(run.events("chief", "checkpoint")) >= 2, RECOVERY)
    killed = run.kill_training_process(victim)
    run.until(f"{victim} to be started again", lambda: [e for e in run.events(victim, "started") if e["time"] > killed], RECOVERY)
    return killed


def assert_complete(run: Run, steps: int = STEPS) -> None:
    assert run.launcher("wait", run.name, check=False, timeout=180).returncode == 0
    status = run.status()
    assert (status["state"], status["step"]) == ("succeeded", steps)
    assert set(status["metrics"]) == {"loss", "reward", "q"}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_worker_that_dies_costs_its_moves_alone(tmp_path: Path) -> None:
    with started({**SPEC, "train": {**SPEC["train"], "steps": ENOUGH}}, tmp_path) as run:
        killed = kill(run, "worker-1")

        def plays_again() -> Any:
            # Two seconds: what it had sent before it was killed has been reported by then.
            return [e for e in run.events("chief", "progress") if e["task"] == "worker-1" and e["time"] > killed + 2]

        run.until("moves to be made", plays_again, RECOVERY)
        assert_complete(run, ENOUGH)
        assert len(run.events("chief", "started")) == 1
        assert not run.events("chief", "restored")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("victim", ["ps-0", "chief"])
def test_without_ps_or_chief_it_goes_on_from_the_last_checkpoint(victim: str, tmp_path: Path) -> None:
    with started(SPEC, tmp_path) as run:
        killed = kill(run, victim)
        restored = run.until("the checkpoint", lambda: [e for e in run.events("chief", "restored") if e["time"] > killed], RECOVERY)[0]
        saved = [e["step"] for e in run.events("chief", "checkpoint") if e["time"] < restored["time"]]
        assert restored["step"] == saved[-1]
        assert_complete(run)
