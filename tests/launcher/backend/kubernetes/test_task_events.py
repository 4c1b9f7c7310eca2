"""Tasks' own events are part of a run's status."""

import json
from typing import Any

import pytest

from launcher.backend.kubernetes.log_lines import LogSelection
from launcher.backend.kubernetes.pod_status import RunSnapshot, run_status
from launcher.backend.kubernetes.run_context import RunContext
from launcher.backend.kubernetes.task_events import TaskEvents
from launcher.runs.status import EndedAttempt, Location, LogLine, State, TaskStatus


def line(task: str, event: str, *, subject: str | None = None, at: float = 1.0, **fields: Any) -> LogLine:
    return LogLine(at, task, json.dumps({"event": event, "time": at, "task": subject or task, **fields}, separators=(",", ":")))


def test_the_chief_s_progress_is_the_run_s_and_it_reports_for_workers() -> None:
    task_events = TaskEvents("chief")
    task_events.apply(
        [
            line("chief", "progress", step=40, steps=100, loss=0.5, metrics={}, examples_per_second=100.0, seconds_per_step=0.5),
            line("chief", "progress", subject="worker-0", step=40, steps=100, local_step=20, examples_per_second=50.0),
            line("chief", "checkpoint", step=30, path="/runs/digits/checkpoints/ckpt-30"),
        ]
    )
    tasks = (TaskStatus("chief", State.RUNNING), TaskStatus("worker-0", State.RUNNING))
    location = Location("claim", "digits", "digits/", "namespace team-a")
    run = run_status(RunSnapshot("digits", ()), tasks, task_events, RunContext(location))
    assert (run.step, run.steps, run.loss, run.checkpoint_step, run.eta) == (40, 100, 0.5, 30, 30.0)
    assert (run.tasks[1].local_step, run.tasks[1].examples_per_second) == (20, 50.0)
    assert (run.run_dir, str(run.run_dir)) == (location, "claim digits in namespace team-a, digits/")


def test_all_restarts_are_counted_though_only_the_newest_are_remembered() -> None:
    task_events = TaskEvents("chief")
    task_events.apply([line("chief", "restarting", at=float(number), exit_code=1) for number in range(1, 701)])
    pods = (EndedAttempt(0.5, 1, 137, "OOMKilled"), EndedAttempt(800.0, 2, 137, "OOMKilled"))
    (chief,) = task_events.statuses([TaskStatus("chief", State.RUNNING, restarts=pods[1:])])
    assert (chief.restart_count, len(chief.restarts)) == (701, 501)
    (chief,) = task_events.statuses([TaskStatus("chief", State.RUNNING, restarts=pods)])
    assert chief.restart_count == 702


def test_a_task_that_waits_for_peers_is_pending() -> None:
    task_events = TaskEvents("chief")
    task_events.apply([line("chief", "waiting", missing=[{"task": "worker-1"}], seconds=3, timeout=600)])
    (chief,) = task_events.statuses([TaskStatus("chief", State.RUNNING)])
    assert (chief.state, chief.reason) == (State.PENDING, "waiting for worker-1")
    task_events.apply([line("chief", "started", attempt=2), line("chief", "ready", seconds=3.0)])
    # The parent waits for the last peer a moment longer than the program.
    task_events.apply([line("chief", "waiting", missing=[{"task": "worker-1"}], seconds=5, timeout=600)])
    assert task_events.statuses([TaskStatus("chief", State.RUNNING)])[0].state is State.RUNNING


@pytest.mark.parametrize(
    "pod_statuses, events, state, reason",
    [
        ([State.RUNNING, State.RUNNING], ["waiting"], State.PENDING, "chief: waiting for worker-1"),
        ([State.RUNNING, State.RUNNING], ["waiting", "ready"], State.RUNNING, ""),
        ([State.RUNNING, State.PENDING], ["ready"], State.PENDING, "worker-0: no room"),
        ([State.SUCCEEDED, State.STOPPED], [], State.STOPPED, ""),
    ],
)
def test_a_run_is_running_when_it_trains_and_no_pod_is_missing(
    pod_statuses: list[State], events: list[str], state: State, reason: str
) -> None:
    task_events = TaskEvents("chief")
    task_events.apply([line("chief", event, missing=[{"task": "worker-1"}]) for event in events])
    tasks = [
        TaskStatus(name, pod_state, "no room" if pod_state is State.PENDING else "")
        for name, pod_state in zip(("chief", "worker-0"), pod_statuses, strict=True)
    ]
    run = run_status(RunSnapshot("digits", ()), tuple(tasks), task_events, RunContext())
    assert (run.state, run.reason) == (state, reason)


def test_restarts_in_a_pod_and_of_pods_are_counted_together_in_order_of_time() -> None:
    task_events = TaskEvents("chief")
    task_events.apply([line("worker-0", "restarting", at=5.0, exit_code=137, cause="killed by SIGKILL", detail="", attempt=2, delay=1.0)])
    pods = (EndedAttempt(2.0, 1, 1, "exit code 1"), EndedAttempt(9.0, 2, None, "its pod was deleted"))
    (task,) = task_events.statuses([TaskStatus("worker-0", State.RUNNING, restarts=pods)])
    assert [(one.attempt, one.cause) for one in task.restarts] == [(1, "exit code 1"), (2, "killed by SIGKILL"), (3, "its pod was deleted")]
    assert (task.state, task.reason) == (State.RESTARTING, "killed by SIGKILL")


def test_restarts_in_a_pod_reduce_those_left_until_they_no_longer_count() -> None:
    task_events = TaskEvents("chief")
    left = []
    for event, fields in (("started", {"attempt": 1}), ("restarting", {"cause": "killed", "left": 4}), ("recovered", {"left": 10})):
        task_events.apply([line("chief", event, **fields)])
        left.append(task_events.statuses([TaskStatus("chief", State.RUNNING, restarts_left=7)])[0].restarts_left)
    assert left == [7, 4, 7]


def test_output_that_only_looks_like_an_event_is_ignored() -> None:
    task_events = TaskEvents("chief")
    task_events.apply([LogLine(1.0, "chief", '{"event":"progress","step":"many","task":7}'), LogLine(1.0, "chief", '{"event":')])
    assert run_status(RunSnapshot("digits", ()), (TaskStatus("chief", State.RUNNING),), task_events, RunContext()).step is None


def test_the_last_lines_are_those_of_each_task_over_its_attempts() -> None:
    lines = [LogLine(float(at), task, f"{task} {at}") for at in (3, 1, 2) for task in ("chief", "ps-0")]
    assert [line.text for line in LogSelection(tail=1).select(lines)] == ["chief 3", "ps-0 3"]
    assert [line.text for line in LogSelection(since=2.0).select(lines)] == ["chief 2", "ps-0 2", "chief 3", "ps-0 3"]
