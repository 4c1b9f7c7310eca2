"""Kills tasks of gridworld_dqn midway: a lost worker costs only its moves; a run that loses the ps or the chief resumes from the last checkpoint."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.integration.running import NEVER, Run, assert_saved, started
from trainer.events import Event

SAVE_EVERY = 250
MORE_MOVES = 250  # after a fault, and from a stop to the end
UNREPORTED = 4000  # moves within which the chief may have saved without reporting it: a save takes longer on a busy machine
SPEC: dict[str, Any] = {
    "version": 1,
    "name": "agent",
    "strategy": "parameter_server",
    "roles": {"chief": {}, "ps": {}, "worker": {"replicas": 2}},
    "train": {
        "workload": "gridworld_dqn",
        "steps": NEVER,
        "params": {"filters": [4, 8, 8], "hidden": 32, "random_steps": 500, "replay": 10_000},
        "checkpoint": {"every_steps": SAVE_EVERY},
        "evaluate": {"every_steps": 0},
        "summaries": {"every_steps": 0},
    },
}

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Faults:
    """A run that lost a worker, a server and its chief, one after the other, was stopped, and resumed to its end."""

    run: Run
    after_worker_loss: dict[str, list[Event]]
    restored: dict[str, Event]
    end: int


def kill(run: Run, victim: str) -> float:
    """Kill a task after two checkpoints of the chief's attempt, and wait until it has started again; return the time of the kill."""
    run.await_two_checkpoints("chief")
    killed = run.kill_training_process(victim)
    run.until(f"{victim} to be started again", lambda: [e for e in run.events(victim, "started") if e["time"] > killed])
    return killed


def moves(run: Run, worker: str) -> int:
    steps = [event["local_step"] for event in run.events("chief", "progress") if event["task"] == worker]
    return steps[-1] if steps else 0


def restored_after(run: Run, when: float) -> list[Event]:
    return [event for event in run.events("chief", "restored") if event["time"] > when]


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    directory = tmp_path_factory.mktemp("agent")
    restored: dict[str, Event] = {}
    with started(SPEC, directory) as run:
        kill(run, "worker-1")
        before = moves(run, "worker-1")
        run.until("worker-1 to make moves again", lambda: moves(run, "worker-1") > before + MORE_MOVES)
        after_worker_loss = {kind: run.events("chief", kind) for kind in ("started", "restored")}
        for victim in ("ps-0", "chief"):
            killed = kill(run, victim)
            restored[victim] = run.until(f"the checkpoint, {victim} killed", partial(restored_after, run, killed))[0]
        run.until("moves after it", lambda: [e for e in run.events("chief", "progress") if e["time"] > restored["chief"]["time"]])
        run.launcher("down", run.name)
        end = assert_saved(run) + MORE_MOVES
        run.launcher("up", str(directory / "agent.yaml"), "--resume", "--set", f"train.steps={end}")
    return Faults(run, after_worker_loss, restored, end)


def test_a_killed_worker_costs_only_its_moves(faults: Faults) -> None:
    assert len(faults.after_worker_loss["started"]) == 1
    assert not faults.after_worker_loss["restored"]


@pytest.mark.parametrize("victim", ["ps-0", "chief"])
def test_a_run_that_loses_its_ps_or_chief_resumes_from_the_last_checkpoint(faults: Faults, victim: str) -> None:
    restored = faults.restored[victim]
    saved = [event["step"] for event in faults.run.events("chief", "checkpoint") if event["time"] < restored["time"]]
    assert saved[-1] <= restored["step"] <= saved[-1] + UNREPORTED  # it may have saved once more without reporting it


def test_the_run_reaches_its_end_after_all_faults_and_a_stop(faults: Faults) -> None:
    status = faults.run.status()
    assert (status["state"], status["step"]) == ("succeeded", faults.end)
    assert set(status["metrics"]) == {"loss", "reward", "q"}
