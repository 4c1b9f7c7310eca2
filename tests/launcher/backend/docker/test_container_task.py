"""Whether a container runs, and how long its next start is delayed. Actions on containers are tested with a real engine."""

from pathlib import Path
from typing import Any, cast

import pytest

from launcher.backend.docker.container_task import ContainerTask
from launcher.backend.docker.engine import Engine
from launcher.plan.models import Resources, RestartRule, Task

TASK = Task("worker-0", "worker", 0, "worker-0:2222", {}, (), {}, Resources(), RestartRule("alone", 3), mounts_run_dir=False)


@pytest.fixture
def task(tmp_path: Path) -> ContainerTask:
    # These tests never call the engine.
    return ContainerTask(TASK, tmp_path / "worker-0.log", cast("Engine", None), "toy")


def exited(code: int, finished: str = "10:00:05") -> dict[str, Any]:
    times = {"StartedAt": "2026-01-31T10:00:00.5Z", "FinishedAt": f"2026-01-31T{finished}Z"}
    return {"Status": "exited", "ExitCode": code, "OOMKilled": False, **times}


def test_a_container_that_is_being_started_counts_as_running(task: ContainerTask) -> None:
    stopped = []
    for change in (
        lambda: task.update({"State": exited(137)}, 0.0),
        task.tracker.mark_starting,
        lambda: task.update({"State": exited(1)}, 1.0),
    ):
        change()
        stopped.append(not task.running)
    assert stopped == [True, False, True]


def test_the_restart_delay_starts_again_after_a_long_run(task: ContainerTask) -> None:
    waits = []
    for finished in ("10:00:05", "10:00:06", "10:00:07", "10:05:00", "10:00:05"):
        task.update({"State": exited(137, finished)}, 0.0)
        task.restart_later("killed", counts=True)
        waits.append(task._delay)
    assert waits == [1.0, 2.0, 4.0, 1.0, 2.0]
    task.log.close()


def test_an_exit_is_reported_once_and_only_if_the_engine_does_not_restart_the_container(task: ContainerTask) -> None:
    task.update({"State": exited(137)}, 0.0)
    assert [task.claim_exit_report(seconds) for seconds in (0.0, 2.9, 3.0, 4.0)] == [False, False, True, False]
    task.update({"State": {"Status": "running"}}, 1.0)
    assert task.exited_for(seen=True) is None
    task.update({"State": exited(0)}, 2.0)
    assert [task.claim_exit_report(0.0) for _ in range(2)] == [True, False]
    task.log.close()


def test_an_exit_is_not_reported_again_after_the_engine_was_unreachable(task: ContainerTask) -> None:
    task.update({"State": exited(0)}, 0.0)
    assert task.exited_for(seen=True) is not None
    assert task.claim_exit_report(0.0)
    assert task.exited_for(seen=False) is None
    assert task.exited_for(seen=True) is not None
    assert not task.claim_exit_report(10.0)
    task.log.close()
