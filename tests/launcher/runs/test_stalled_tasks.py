"""The task that holds up a run."""

from typing import Any

import pytest

from launcher.runs.stalled_tasks import stall_summary
from launcher.runs.status import RunStatus, State, TaskStatus
from launcher.runs.task_tracker import TaskTracker
from tests.golden_messages import Golden

START = 1_800_000_000.0  # 2027-01-15T08:00:00Z


def report(tracker: TaskTracker, kind: str, at: float, **fields: Any) -> None:
    tracker.apply({"event": kind, "time": START + at, "task": tracker.name, **fields}, self_reported=True)


def task(name: str, *events: tuple[Any, ...]) -> TaskStatus:
    """Return the status of a task that reported `events`: kind, seconds, fields."""
    tracker = TaskTracker(name)
    tracker.mark_started()
    for kind, at, *fields in events:
        report(tracker, kind, at, **(fields[0] if fields else {}))
    return tracker.status()


def stalled(at: float, doing: str, place: str = "") -> tuple[Any, ...]:
    return "stalled", at, {"seconds": 60.0, "step": 7, "doing": doing, "place": place}


PROGRESS = ("progress", 0.0, {"step": 7, "steps": 10})


@pytest.mark.parametrize(
    "tasks, summary",
    [
        ([task("chief", PROGRESS)], ""),
        (
            [task("chief", stalled(60, "peers")), task("worker-0", stalled(61, "input", "data.py:7 in rows"))],
            "worker-0 makes no progress since 2027-01-15T08:00:01Z: in its input, data.py:7 in rows",
        ),
        (
            [task("chief", stalled(60, "servers", "ps-0")), task("ps-0")],
            "chief makes no progress since 2027-01-15T08:00:00Z: waiting for servers that do not answer, ps-0",
        ),
        (
            [task("worker-0", stalled(60, "peers")), task("worker-1", stalled(60, "peers")), task("worker-2", PROGRESS)],
            "worker-0 makes no progress since 2027-01-15T08:00:00Z: waiting for other tasks; worker-2 has not been heard of since",
        ),
        # The chief reports that it evaluates.
        (
            [task("chief", PROGRESS, ("busy", 59.0, {"phase": "evaluating", "seconds": 58.0})), task("worker-0", stalled(60, "peers"))],
            "worker-0 makes no progress since 2027-01-15T08:00:00Z: waiting for other tasks",
        ),
        ([task("chief", stalled(60, "code", "a.py:1 in f"), ("resumed", 70.0, {"seconds": 70.0}))], ""),
        ([task("chief", stalled(60, "code", "a.py:1 in f"), ("progress", 70.0, {"step": 8, "steps": 10}))], ""),
    ],
    ids=["none", "one that does not wait", "a server", "a silent one", "one that evaluates", "one that resumes", "one that makes a step"],
)
def test_the_task_that_holds_up_the_run_is_named(tasks: list[TaskStatus], summary: str) -> None:
    assert stall_summary(RunStatus("r", "local", State.RUNNING, tasks=tuple(tasks))) == summary


def test_a_stalled_task_is_running_and_its_reason_names_its_activity(golden: Golden) -> None:
    status = task("chief", PROGRESS, stalled(60, "tensorflow", "execute.py:53 in quick_execute"))
    assert (status.state, status.stalled, status.stalled_since, status.heard) == (State.RUNNING, "tensorflow", START, START + 60)
    golden(status.reason)
