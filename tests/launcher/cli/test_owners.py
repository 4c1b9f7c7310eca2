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


def test_ones_own_run_needs_no_confirmation_nor_any_run_with_yes() -> None:
    owners.confirm(MINE, "stop", yes=False, may_prompt=False)
    owners.confirm(ANOTHERS, "stop", yes=True, may_prompt=False)


def test_another_users_run_needs_a_flag_or_an_answer(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    with pytest.raises(UsageError, match="digits was started by ada") as refused:
        owners.confirm(ANOTHERS, "stop", yes=False, may_prompt=False)
    assert "--yes to stop it anyway" in refused.value.remedy
    questions: list[str] = []

    def confirm(question: str, **_: object) -> bool:
        questions.append(question)
        return False

    monkeypatch.setattr(typer, "confirm", confirm)
    with pytest.raises(typer.Abort):
        owners.confirm(ANOTHERS, "continue", yes=False, may_prompt=True)
    golden(*questions)


@pytest.mark.parametrize(
    "changes, removed, deleted",
    [
        ({"state": State.SUCCEEDED}, True, True),
        ({"state": State.FAILED}, True, True),
        ({"state": State.STOPPED}, True, False),  # it may be resumed
        ({"state": State.STOPPED, "ended": None}, False, False),  # its Jobs are suspended
        ({"state": State.SUCCEEDED, "mine": False}, False, False),
        ({"state": State.SUCCEEDED, "user": ""}, False, False),  # created by kubectl, GitOps or an earlier version: its owner is not known
        ({"state": State.SUCCEEDED, "user": "", "backend": "local"}, True, True),
        ({"state": State.RUNNING}, False, False),
    ],
)
def test_only_finished_runs_of_ones_own_are_removed(changes: dict[str, Any], removed: bool, deleted: bool) -> None:
    run = replace(MINE, ended=1.0)
    assert _is_finished(replace(run, **changes), delete_data=False) == removed
    assert _is_finished(replace(run, **changes), delete_data=True) == deleted
