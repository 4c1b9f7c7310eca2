"""A run's progress, from its events."""

import pytest

from launcher.runs.progress import RunProgress
from launcher.runs.status import SaveFailure


def test_metrics_of_evaluations_replace_those_of_training() -> None:
    progress = RunProgress()
    progress.apply({"event": "progress", "step": 1, "steps": 9, "metrics": {"accuracy": 0.1}}, is_leader=True)
    assert progress.metrics == {"accuracy": 0.1}
    progress.apply({"event": "evaluated", "step": 1, "metrics": {"accuracy": 0.8}}, is_leader=False)
    progress.apply({"event": "progress", "step": 2, "steps": 9, "metrics": {"accuracy": 0.2}}, is_leader=True)
    assert (progress.step, progress.metrics) == (2, {"accuracy": 0.8})
    fields = progress.fields(ended=False)
    assert (fields["metrics_of"], fields["evaluated_step"], fields["training_metrics"]) == ("evaluation", 1, {"accuracy": 0.2})


def test_the_reason_of_an_early_end_is_cleared_once_the_run_continues() -> None:
    progress = RunProgress()
    progress.apply({"event": "done", "step": 5, "ended_early": "no better"}, is_leader=True)
    assert progress.fields(ended=True)["ended_early"] == "no better"
    progress.apply({"event": "progress", "step": 6, "steps": 9}, is_leader=True)
    assert progress.fields(ended=False)["ended_early"] == ""


def test_only_steps_of_the_leader_count() -> None:
    progress = RunProgress()
    progress.apply({"event": "ready"}, is_leader=False)
    progress.apply({"event": "progress", "step": 5}, is_leader=False)
    assert (progress.ready, progress.step) == (True, None)


def test_values_of_the_wrong_type_are_ignored() -> None:
    progress = RunProgress()
    event = {"event": "progress", "step": True, "steps": "9", "loss": float("nan"), "metrics": {"a": 1, "b": "x", "c": float("inf")}}
    progress.apply(event, is_leader=True)
    assert (progress.step, progress.steps, progress.loss, progress.metrics) == (None, None, None, {"a": 1.0})
    assert progress.eta() is None


def test_null_means_a_number_that_is_not_finite_and_a_missing_one_is_unknown() -> None:
    not_finite, missing = RunProgress(), RunProgress()
    not_finite.apply({"event": "progress", "step": 1, "loss": None, "metrics": {"a": None}}, is_leader=True)
    assert repr(not_finite.loss) == "nan"
    assert repr(not_finite.metrics) == "{'a': nan}"
    missing.apply({"event": "progress", "step": 1}, is_leader=True)
    assert (missing.loss, missing.metrics) == (None, {})


def test_a_restored_run_starts_from_its_checkpoint() -> None:
    progress = RunProgress()
    progress.apply({"event": "restored", "step": 40, "path": "ckpt-40"}, is_leader=True)
    assert progress.fields(ended=False)["step"] == 40


def test_the_step_of_a_run_may_be_that_of_the_checkpoint_saved_by_its_stop() -> None:
    progress = RunProgress()
    progress.apply({"event": "progress", "step": 40, "steps": 90}, is_leader=True)
    progress.apply({"event": "checkpoint", "step": 47, "path": "ckpt-47"}, is_leader=True)
    assert progress.fields(ended=True)["step"] == 47
    progress.apply({"event": "progress", "step": 49, "steps": 90}, is_leader=True)
    progress.apply({"event": "checkpoint", "step": 48, "path": "ckpt-48"}, is_leader=True)
    assert progress.fields(ended=True)["step"] == 49
    progress.apply({"event": "restored", "step": 47, "path": "ckpt-47"}, is_leader=True)
    assert progress.fields(ended=True)["step"] == 47


def test_any_task_may_report_the_path_of_the_exported_model() -> None:
    progress = RunProgress()
    assert progress.fields(ended=True)["model"] is None
    progress.apply({"event": "exported", "step": 5, "path": "/runs/x/export/best"}, is_leader=False)
    assert progress.fields(ended=True)["model"] == "/runs/x/export/best"
    progress.apply({"event": "exported", "step": 5, "path": 5}, is_leader=True)
    assert progress.model is None


FAILED_SAVE = {
    "event": "save_failed",
    "time": 1000.0,
    "step": 20,
    "path": "/runs/x/checkpoints",
    "cause": "No space left on device",
    "seconds": 60.0,
    "timeout": 1800.0,
    "size": 4096,
    "free": 512,
    "saved": 10,
}


def test_a_failed_save_is_reported_until_one_succeeds() -> None:
    progress = RunProgress()
    progress.apply(FAILED_SAVE, is_leader=False)  # only the leader saves
    assert progress.fields(ended=False)["save_failed"] is None
    progress.apply(FAILED_SAVE, is_leader=True)
    progress.apply({"event": "progress", "step": 21, "steps": 90}, is_leader=True)
    failure = SaveFailure("/runs/x/checkpoints", "No space left on device", 20, 4096, 512, 10, since=940.0, until=2740.0)
    assert progress.fields(ended=False)["save_failed"] == failure
    assert progress.fields(ended=True)["save_failed"] is None
    progress.apply({"event": "checkpoint", "step": 22, "path": "ckpt-22"}, is_leader=True)
    assert progress.fields(ended=False)["save_failed"] is None


@pytest.mark.parametrize("event", ["started", "restarting", "done"])
def test_a_failed_save_is_cleared_when_the_process_restarts_or_ends(event: str) -> None:
    progress = RunProgress()
    progress.apply(FAILED_SAVE, is_leader=True)
    progress.apply({"event": event, "step": 22}, is_leader=True)
    assert progress.save_failed is None


def test_values_of_the_wrong_type_in_a_failed_save_are_ignored() -> None:
    progress = RunProgress()
    progress.apply({"event": "save_failed", "path": 7, "size": "x", "free": None}, is_leader=True)
    assert progress.save_failed == SaveFailure("", "")
