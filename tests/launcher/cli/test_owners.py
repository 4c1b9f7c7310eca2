"""A run that another user of the cluster has started is not touched by mistake."""

from dataclasses import replace
from typing import Any

import pytest
import typer

from launcher.cli import owners
from launcher.cli.down import _is_finished
from launcher.errors import UsageError
from launcher.runs.status import RunStatus, State
from tests.golden_messages import Golden

MINE = RunStatus("digits", "kubernetes", State.STOPPED, user="ada")
ANOTHERS = replace(MINE, mine=False)


def test_ones_own_run_is_not_asked_about_nor_is_what_was_said_already() -> None:
    owners.confirm(MINE, "stop", yes=False, may_prompt=False)
    owners.confirm(ANOTHERS, "stop", yes=True, may_prompt=False)


def test_anothers_run_wants_a_flag_or_an_answer(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    with pytest.raises(UsageError, match="digits was started by ada") as refused:
        owners.confirm(ANOTHERS, "stop", yes=False, may_prompt=False)
    assert "--yes to stop it anyway" in refused.value.remedy
    asked: list[str] = []

    def confirm(words: str, **_: object) -> bool:
        asked.append(words)
        return False

    monkeypatch.setattr(typer, "confirm", confirm)
    with pytest.raises(typer.Abort):
        owners.confirm(ANOTHERS, "continue", yes=False, may_prompt=True)
    golden(*asked)


@pytest.mark.parametrize(
    "changes, removed, deleted",
    [
        ({"state": State.SUCCEEDED}, True, True),
        ({"state": State.FAILED}, True, True),
        ({"state": State.STOPPED}, True, False),  # it may be to go on
        ({"state": State.STOPPED, "ended": None}, False, False),  # somebody has suspended its Jobs
        ({"state": State.SUCCEEDED, "mine": False}, False, False),
        ({"state": State.SUCCEEDED, "user": ""}, False, False),  # of kubectl, GitOps or an earlier version: nobody knows whose it is
        ({"state": State.SUCCEEDED, "user": "", "backend": "local"}, True, True),
        ({"state": State.RUNNING}, False, False),
    ],
)
def test_which_of_the_finished_runs_are_ones_own_to_remove(changes: dict[str, Any], removed: bool, deleted: bool) -> None:
    one = replace(MINE, ended=1.0)
    assert _is_finished(replace(one, **changes), delete_data=False) == removed
    assert _is_finished(replace(one, **changes), delete_data=True) == deleted
