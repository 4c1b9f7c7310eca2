"""Whether a container runs, and how long its next start waits. Actions on containers are tried on a real engine."""

from pathlib import Path
from typing import Any, cast

import pytest

from launcher.backend.docker.container_task import ContainerTask
from launcher.backend.docker.engine import Engine
from launcher.plan.models import Resources, RestartRule, Task

TASK = Task("worker-0", "worker", 0, "worker-0:2222", {}, (), {}, Resources(), RestartRule("alone", 3), mounts_run_dir=False)


@pytest.fixture
def kept(tmp_path: Path) -> ContainerTask:
    # Nothing here asks the engine.
    return ContainerTask(TASK, tmp_path / "worker-0.log", cast("Engine", None), "toy")


def exited(code: int, ran: str = "10:00:05") -> dict[str, Any]:
    times = {"StartedAt": "2026-01-31T10:00:00.5Z", "FinishedAt": f"2026-01-31T{ran}Z"}
    return {"Status": "exited", "ExitCode": code, "OOMKilled": False, **times}


def test_a_container_that_is_being_started_is_not_over(kept: ContainerTask) -> None:
    seen = []
    for take_in in (
        lambda: kept.update({"State": exited(137)}, 0.0),
        kept.tracker.mark_starting,
        lambda: kept.update({"State": exited(1)}, 1.0),
    ):
        take_in()
        seen.append(not kept.running)
    assert seen == [True, False, True]


def test_one_that_ran_well_for_long_is_started_again_soon(kept: ContainerTask) -> None:
    waits = []
    for ran in ("10:00:05", "10:00:06", "10:00:07", "10:05:00", "10:00:05"):
        kept.update({"State": exited(137, ran)}, 0.0)
        kept.restart_later("killed", counts=True)
        waits.append(kept._delay)
    assert waits == [1.0, 2.0, 4.0, 1.0, 2.0]
    kept.log.close()


def test_an_exit_is_told_once_and_only_when_the_engine_does_not_start_it_again(kept: ContainerTask) -> None:
    kept.update({"State": exited(137)}, 0.0)
    assert [kept.should_report_exit(seconds) for seconds in (0.0, 2.9, 3.0, 4.0)] == [False, False, True, False]
    kept.update({"State": {"Status": "running"}}, 1.0)
    assert kept.exited_for(seen=True) is None
    kept.update({"State": exited(0)}, 2.0)
    assert [kept.should_report_exit(0.0) for _ in range(2)] == [True, False]
    kept.log.close()


def test_an_exit_that_was_told_is_not_told_again_after_an_engine_that_was_away(kept: ContainerTask) -> None:
    kept.update({"State": exited(0)}, 0.0)
    assert kept.exited_for(seen=True) is not None
    assert kept.should_report_exit(0.0)
    assert kept.exited_for(seen=False) is None
    assert kept.exited_for(seen=True) is not None
    assert not kept.should_report_exit(10.0)
    kept.log.close()
