"""A run's progress, from its events."""

import pytest

from launcher.runs.progress import Progress
from launcher.runs.status import SaveFailure


def test_evaluations_are_told_rather_than_training_metrics() -> None:
    progress = Progress()
    progress.apply({"event": "progress", "step": 1, "steps": 9, "metrics": {"accuracy": 0.1}}, is_leader=True)
    assert progress.metrics == {"accuracy": 0.1}
    progress.apply({"event": "evaluated", "step": 1, "metrics": {"accuracy": 0.8}}, is_leader=False)
    progress.apply({"event": "progress", "step": 2, "steps": 9, "metrics": {"accuracy": 0.2}}, is_leader=True)
    assert (progress.step, progress.metrics) == (2, {"accuracy": 0.8})
    told = progress.fields(ended=False)
    assert (told["metrics_of"], told["evaluated_step"], told["training_metrics"]) == ("evaluation", 1, {"accuracy": 0.2})


def test_why_a_run_ended_early_is_known_until_it_goes_on() -> None:
    progress = Progress()
    progress.apply({"event": "done", "step": 5, "ended_early": "no better"}, is_leader=True)
    assert progress.fields(ended=True)["ended_early"] == "no better"
    progress.apply({"event": "progress", "step": 6, "steps": 9}, is_leader=True)
    assert progress.fields(ended=False)["ended_early"] == ""


def test_only_the_leader_tells_of_steps() -> None:
    progress = Progress()
    progress.apply({"event": "ready"}, is_leader=False)
    progress.apply({"event": "progress", "step": 5}, is_leader=False)
    assert (progress.ready, progress.step) == (True, None)


def test_values_of_the_wrong_kind_count_as_not_told() -> None:
    progress = Progress()
    event = {"event": "progress", "step": True, "steps": "9", "loss": float("nan"), "metrics": {"a": 1, "b": "x", "c": float("inf")}}
    progress.apply(event, is_leader=True)
    assert (progress.step, progress.steps, progress.loss, progress.metrics) == (None, None, None, {"a": 1.0})
    assert progress.eta() is None


def test_null_is_a_number_that_was_not_finite_and_what_is_left_out_is_not_known() -> None:
    spoilt, unknown = Progress(), Progress()
    spoilt.apply({"event": "progress", "step": 1, "loss": None, "metrics": {"a": None}}, is_leader=True)
    assert repr(spoilt.loss) == "nan"
    assert repr(spoilt.metrics) == "{'a': nan}"
    unknown.apply({"event": "progress", "step": 1}, is_leader=True)
    assert (unknown.loss, unknown.metrics) == (None, {})


def test_a_restored_run_starts_from_its_checkpoint() -> None:
    progress = Progress()
    progress.apply({"event": "restored", "step": 40, "path": "ckpt-40"}, is_leader=True)
    assert progress.fields(ended=False)["step"] == 40


def test_a_run_is_as_far_as_the_checkpoint_that_its_stop_saved() -> None:
    progress = Progress()
    progress.apply({"event": "progress", "step": 40, "steps": 90}, is_leader=True)
    progress.apply({"event": "checkpoint", "step": 47, "path": "ckpt-47"}, is_leader=True)
    assert progress.fields(ended=True)["step"] == 47
    progress.apply({"event": "progress", "step": 49, "steps": 90}, is_leader=True)
    progress.apply({"event": "checkpoint", "step": 48, "path": "ckpt-48"}, is_leader=True)
    assert progress.fields(ended=True)["step"] == 49
    progress.apply({"event": "restored", "step": 47, "path": "ckpt-47"}, is_leader=True)
    assert progress.fields(ended=True)["step"] == 47


def test_the_task_that_exports_the_model_tells_where_it_is() -> None:
    progress = Progress()
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


def test_saves_that_fail_are_told_until_one_succeeds() -> None:
    progress = Progress()
    progress.apply(FAILED_SAVE, is_leader=False)  # nobody else saves
    assert progress.fields(ended=False)["save_failed"] is None
    progress.apply(FAILED_SAVE, is_leader=True)
    progress.apply({"event": "progress", "step": 21, "steps": 90}, is_leader=True)
    failure = SaveFailure("/runs/x/checkpoints", "No space left on device", 20, 4096, 512, 10, since=940.0, until=2740.0)
    assert progress.fields(ended=False)["save_failed"] == failure
    assert progress.fields(ended=True)["save_failed"] is None
    progress.apply({"event": "checkpoint", "step": 22, "path": "ckpt-22"}, is_leader=True)
    assert progress.fields(ended=False)["save_failed"] is None


@pytest.mark.parametrize("event", ["started", "restarting", "done"])
def test_a_process_that_comes_again_or_is_done_has_no_failed_save(event: str) -> None:
    progress = Progress()
    progress.apply(FAILED_SAVE, is_leader=True)
    progress.apply({"event": event, "step": 22}, is_leader=True)
    assert progress.save_failed is None


def test_of_a_failed_save_what_is_of_the_wrong_kind_is_not_told() -> None:
    progress = Progress()
    progress.apply({"event": "save_failed", "path": 7, "size": "x", "free": None}, is_leader=True)
    assert progress.save_failed == SaveFailure("", "")
