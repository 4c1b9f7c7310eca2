"""A task's row: the time that it waits, and what happened to it."""

from typing import Any

import pytest

from launcher.cli import task_rows
from launcher.cli.prefixes import Prefixes
from launcher.runs.status import Restart, State, TaskStatus

RESTART = Restart(time=0.0, attempt=1, exit_code=75, cause="a peer was lost")


def reason(**known: Any) -> str:
    task = TaskStatus(**{"name": "worker-0", "state": State.RUNNING, **known})
    *_, cell = task_rows.row(task, Prefixes(["worker-0"]), marked=False)
    return cell if isinstance(cell, str) else cell[0]


@pytest.mark.parametrize(
    "known, cell",
    [
        ({}, ""),
        ({"restarts_left": 10}, ""),
        ({"restarts": (RESTART,)}, ("1", "yellow")),
        ({"restarts": (RESTART,), "restarts_left": 9}, ("1, 9 left", "yellow")),
        ({"state": State.SUCCEEDED, "restarts": (RESTART,), "restarts_left": 9}, ("1", "yellow")),
    ],
)
def test_how_many_restarts_there_were_and_are_left(known: dict[str, Any], cell: object) -> None:
    task = TaskStatus(**{"name": "worker-0", "state": State.RUNNING, **known})
    row = task_rows.row(task, Prefixes(["worker-0"]), marked=False)
    assert row[task_rows.HEADERS.index("RESTARTS")] == cell


@pytest.mark.parametrize(
    "known, said",
    [
        ({}, ""),
        ({"input_wait": 0.09, "peer_wait": 0.0}, ""),
        ({"input_wait": 0.1}, "waits 10% for input"),
        ({"input_wait": 0.614, "peer_wait": 0.02}, "waits 61% for input"),
        ({"input_wait": 0.2, "peer_wait": 0.7}, "waits 20% for input, 70% for peers"),
        ({"restarts": (RESTART,)}, "restarted: a peer was lost"),
        ({"peer_wait": 0.5, "restarts": (RESTART,)}, "waits 50% for peers; restarted: a peer was lost"),
        # The backend's reason is told alone; and of a task that has ended, how it waited is of no interest.
        ({"reason": "no node has a free GPU", "input_wait": 0.9}, "no node has a free GPU"),
        ({"state": State.SUCCEEDED, "input_wait": 0.9, "restarts": (RESTART,)}, ""),
        ({"state": State.FAILED, "reason": "exit code 1", "input_wait": 0.9}, "exit code 1"),
    ],
)
def test_the_reason_says_what_a_running_task_waits_for(known: dict[str, Any], said: str) -> None:
    assert reason(**known) == said
