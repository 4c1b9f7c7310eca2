"""`launcher status`, and when `--watch` shows a run again."""

import dataclasses

from launcher.cli.status import _facts, is_same
from launcher.runs.status import RunStatus, SaveFailure, State


def test_a_run_whose_loss_is_nan_is_shown_again_only_if_something_has_changed() -> None:
    one, other = (RunStatus("toy", "local", State.RUNNING, step=3, loss=float("nan"), metrics={"accuracy": float("nan")}) for _ in range(2))
    assert is_same(one, other)
    assert not is_same(one, dataclasses.replace(other, step=4))


def test_an_unattended_run_says_which_work_is_not_done() -> None:
    run = RunStatus("toy", "kubernetes", State.RUNNING)
    assert "attendant" not in dict(_facts(run))
    assert "replaces pods of lost nodes" in dict(_facts(dataclasses.replace(run, attended=False)))["attendant"]


def test_failed_saves_are_shown_with_path_and_free_space_and_the_end_of_the_retries() -> None:
    failure = SaveFailure("/runs/toy/checkpoints", "No space left on device", 20, 24_000_000, 512, 10, since=100.0, until=1900.0)
    run = RunStatus("toy", "local", State.RUNNING, save_failed=failure)
    saving = dict(_facts(run))["saving"]
    assert saving.startswith("fails for ")
    assert saving.partition("; ")[0].endswith("/runs/toy/checkpoints: No space left on device")
    assert saving.endswith(
        "; step 20 takes 24 MB, 512 bytes are free; the last checkpoint is of step 10; it is retried until "
        "1970-01-01T00:31:40Z (limits.save_timeout)"
    )
    silent = SaveFailure("/runs/toy/checkpoints", "it has not answered since 12:00:00 UTC")
    assert dict(_facts(dataclasses.replace(run, save_failed=silent)))["saving"] == (
        "fails: /runs/toy/checkpoints: it has not answered since 12:00:00 UTC; there is no checkpoint"
    )
    assert "saving" not in dict(_facts(dataclasses.replace(run, state=State.FAILED)))
