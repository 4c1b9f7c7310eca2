"""The recorded end of a run that was asked to stop: stopped, unless all of its tasks finished meanwhile."""

import json
from typing import Any

import pytest

from launcher.backend.kubernetes.task_events import TaskEvents
from launcher.backend.kubernetes.teardown import _final_status, _UnresponsiveNodes, unsaved_notice
from launcher.runs.status import LogLine, RunStatus, SaveFailure, State, TaskStatus


@pytest.mark.parametrize(
    "finished, state, reason",
    [
        (("chief", "worker-0"), State.SUCCEEDED, "it was done before it stopped"),
        (("chief",), State.STOPPED, "asked to stop"),
        ((), State.STOPPED, "asked to stop"),
    ],
)
def test_a_run_whose_tasks_all_finished_has_succeeded(finished: tuple[str, ...], state: State, reason: str) -> None:
    tasks = tuple(TaskStatus(name, State.RUNNING) for name in ("chief", "worker-0"))
    task_events = TaskEvents("chief")
    for name in finished:
        event = {"event": "done", "time": 1.0, "task": name, "seconds": 3.0}
        task_events.apply([LogLine(1.0, name, json.dumps(event, separators=(",", ":")))])
    ended = _final_status(RunStatus("digits", "kubernetes", State.RUNNING, tasks=tasks), task_events, 2.0)
    assert (ended.state, ended.reason) == (state, reason)
    assert [task.state is State.SUCCEEDED for task in ended.tasks] == [task.name in finished for task in tasks]


def test_a_stopped_run_has_neither_a_failed_save_nor_time_left() -> None:
    failure = SaveFailure("/var/tf/runs/digits", "no space left", until=1800.0)
    before = RunStatus("digits", "kubernetes", State.RUNNING, "full", reason_task="chief", eta=60.0, save_failed=failure)
    ended = _final_status(before, TaskEvents("chief"), 2.0)
    assert ended == RunStatus("digits", "kubernetes", State.STOPPED, "asked to stop", ended=2.0)


def pod(task: str, node: str, *, answers: bool) -> dict[str, Any]:
    role, _, index = task.partition("-")
    ready = {"type": "Ready", "status": "True"} if answers else {"type": "Ready", "status": "False", "reason": "NodeNotReady"}
    labels = {"app.kubernetes.io/component": role}
    head = {"name": f"digits-{task}-abcde", "labels": labels, "annotations": {"batch.kubernetes.io/job-completion-index": index or "0"}}
    return {"metadata": head, "spec": {"nodeName": node}, "status": {"conditions": [ready]}}


def test_a_node_that_does_not_answer_is_reported_once_and_its_unsaved_tasks_at_the_end() -> None:
    lost = [pod("chief", "node-2", answers=False), pod("worker-1", "node-2", answers=False)]
    messages: list[str] = []
    nodes = _UnresponsiveNodes(messages.append)
    for _ in range(2):
        nodes.check([*lost, pod("worker-0", "node-1", answers=True)])
    (message,) = messages
    assert message.startswith("the node node-2 does not answer: chief, worker-1 may not save; waiting ")
    before = RunStatus("digits", "kubernetes", State.RUNNING, tasks=(TaskStatus("chief", State.RUNNING),))
    reason = _final_status(before, TaskEvents("chief"), 0.0, unsaved_notice(lost)).reason
    assert reason.endswith("may be lost with tasks whose nodes did not answer: chief on node-2, worker-1 on node-2")
    assert unsaved_notice([]) == ""
