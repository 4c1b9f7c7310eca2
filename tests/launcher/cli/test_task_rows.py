"""A task's row: the time that it waits, and what happened to it."""

from typing import Any

import pytest

from launcher.cli import task_rows
from launcher.cli.prefixes import Prefixes
from launcher.cli.tables import Cell
from launcher.runs.status import EndedAttempt, State, TaskStatus

ENDED_ATTEMPT = EndedAttempt(time=0.0, attempt=1, exit_code=75, cause="a peer was lost")


def row(**fields: Any) -> tuple[Cell, ...]:
    task = TaskStatus(**{"name": "worker-0", "state": State.RUNNING, **fields})
    return task_rows.row(task, Prefixes(["worker-0"]), marked=False)


@pytest.mark.parametrize(
    "fields, cell",
    [
        ({}, ""),
        ({"restarts_left": 10}, ""),
        ({"restarts": (ENDED_ATTEMPT,)}, ("1", "yellow")),
        ({"restarts": (ENDED_ATTEMPT,), "restarts_left": 9}, ("1, 9 left", "yellow")),
        ({"state": State.SUCCEEDED, "restarts": (ENDED_ATTEMPT,), "restarts_left": 9}, ("1", "yellow")),
    ],
)
def test_a_row_has_the_number_of_restarts_and_of_those_left(fields: dict[str, Any], cell: object) -> None:
    assert row(**fields)[task_rows.HEADERS.index("RESTARTS")] == cell


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({}, ""),
        ({"input_wait": 0.09, "peer_wait": 0.0}, ""),
        ({"input_wait": 0.1}, "waits 10% for input"),
        ({"input_wait": 0.614, "peer_wait": 0.02}, "waits 61% for input"),
        ({"input_wait": 0.2, "peer_wait": 0.7}, "waits 20% for input, 70% for peers"),
        ({"restarts": (ENDED_ATTEMPT,)}, "restarted: a peer was lost"),
        ({"peer_wait": 0.5, "restarts": (ENDED_ATTEMPT,)}, "waits 50% for peers; restarted: a peer was lost"),
        # A backend's reason is shown without the waits, and so is the end of a task.
        ({"reason": "no node has a free GPU", "input_wait": 0.9}, "no node has a free GPU"),
        ({"state": State.SUCCEEDED, "input_wait": 0.9, "restarts": (ENDED_ATTEMPT,)}, ""),
        ({"state": State.FAILED, "reason": "exit code 1", "input_wait": 0.9}, "exit code 1"),
    ],
)
def test_the_reason_says_what_a_running_task_waits_for(fields: dict[str, Any], expected: str) -> None:
    reason = row(**fields)[-1]
    assert (reason if isinstance(reason, str) else reason[0]) == expected
