"""What a task is said to have come to, and how long its next start waits. What is done to containers is tried on a real engine."""

from pathlib import Path
from typing import Any, cast

import pytest

from launcher.backend.docker.engine import Engine
from launcher.backend.docker.supervised_task import Ending, SupervisedTask
from launcher.plan.models import Resources, RestartRule, Task
from launcher.runs.status import State
from trainer.exit_codes import describe

TASK = Task("worker-0", "worker", 0, "worker-0:2222", {}, (), {}, Resources(), RestartRule("alone", 3), mounts_run_dir=False)


@pytest.fixture
def kept(tmp_path: Path) -> SupervisedTask:
    # Nothing here asks the engine.
    return SupervisedTask(TASK, tmp_path / "worker-0.log", cast("Engine", None), "toy")


def exited(code: int, ran: str = "10:00:05") -> dict[str, Any]:
    times = {"StartedAt": "2026-01-31T10:00:00.5Z", "FinishedAt": f"2026-01-31T{ran}Z"}
    return {"Status": "exited", "ExitCode": code, "OOMKilled": False, **times}


@pytest.mark.parametrize(
    "code, ending, state, reason",
    [
        (0, Ending(State.FAILED, ""), State.SUCCEEDED, ""),
        (143, Ending(State.SUCCEEDED, ""), State.SUCCEEDED, "stopped at the end of the run"),
        (143, Ending(State.STOPPED, ""), State.STOPPED, ""),
        (137, Ending(State.STOPPED, "", grace=30), State.STOPPED, "killed: it did not stop within 30 s"),
        (137, Ending(State.STOPPED, "", grace=0, killed=True), State.STOPPED, "killed"),
        (1, Ending(State.SUCCEEDED, ""), State.FAILED, "failed with exit code 1"),
        (75, Ending(State.FAILED, ""), State.STOPPED, describe(75)),
    ],
)
def test_how_a_task_ended_is_told_by_how_the_run_did(kept: SupervisedTask, code: int, ending: Ending, state: State, reason: str) -> None:
    kept.look({"State": exited(code)}, 0.0)
    kept.settle(ending)
    assert kept.view.state() == (state, reason)


def test_a_container_that_is_being_started_is_not_over(kept: SupervisedTask) -> None:
    seen = []
    for take_in in (lambda: kept.look({"State": exited(137)}, 0.0), kept.view.starts, lambda: kept.look({"State": exited(1)}, 1.0)):
        take_in()
        seen.append(kept.over)
    assert seen == [True, False, True]


def test_one_that_ran_well_for_long_is_started_again_soon(kept: SupervisedTask) -> None:
    waits = []
    for ran in ("10:00:05", "10:00:06", "10:00:07", "10:05:00", "10:00:05"):
        kept.look({"State": exited(137, ran)}, 0.0)
        kept.start_later(137, counts=True)
        waits.append(kept._delay)
    assert waits == [1.0, 2.0, 4.0, 1.0, 2.0]
    kept.log.close()
