"""What `launcher status` tells, and when `--watch` shows a run again."""

import dataclasses

from launcher.cli.status import _facts, is_same
from launcher.runs.status import RunStatus, State


def test_a_run_whose_loss_is_nan_is_shown_again_only_where_something_has_changed() -> None:
    one, other = (RunStatus("toy", "local", State.RUNNING, step=3, loss=float("nan"), metrics={"accuracy": float("nan")}) for _ in range(2))
    assert is_same(one, other)
    assert not is_same(one, dataclasses.replace(other, step=4))


def test_a_run_on_which_nobody_attends_says_what_nobody_does() -> None:
    run = RunStatus("toy", "kubernetes", State.RUNNING)
    assert "attendant" not in dict(_facts(run))
    assert "releases pods of lost nodes" in dict(_facts(dataclasses.replace(run, attended=False)))["attendant"]
