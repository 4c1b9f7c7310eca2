"""How a run is remembered that was asked to stop: as stopped, unless all of its tasks finished meanwhile."""

import json

import pytest

from launcher.backend.kubernetes.ending import _ended
from launcher.backend.kubernetes.told import Story
from launcher.backend.model import LogLine, RunStatus, State, TaskStatus


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
    story = Story("chief")
    for name in finished:
        told = {"event": "done", "time": 1.0, "task": name, "seconds": 3.0}
        story.take([LogLine(1.0, name, json.dumps(told, separators=(",", ":")))])
    ended = _ended(RunStatus("digits", "kubernetes", State.RUNNING, tasks=tasks), story, 2.0)
    assert (ended.state, ended.reason) == (state, reason)
    assert [task.state is State.SUCCEEDED for task in ended.tasks] == [task.name in finished for task in tasks]
