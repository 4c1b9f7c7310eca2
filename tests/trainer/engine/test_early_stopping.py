"""Runs that end before their last step."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.engine.small import Small
from tests.trainer.engine.test_loop import train
from trainer import settings_rules
from trainer.engine import evaluations, model_ops, run_state
from trainer.engine.checkpoints import Checkpoints
from trainer.engine.early_stopping import EarlyStop, no_improvement
from trainer.engine.evaluations import EvaluationResult
from trainer.settings import EarlyStopping, Train
from trainer.workloads.errors import WorkloadError


def results(*losses: float) -> list[EvaluationResult]:
    return [EvaluationResult(step, {"loss": loss, "accuracy": 1 - loss}, 0.0) for step, loss in enumerate(losses)]


@pytest.mark.parametrize(
    "rule, losses, stops",
    [
        ({"patience": 2}, [3, 2, 1], False),
        ({"patience": 2}, [3, 2, 2.5], False),
        ({"patience": 2}, [3, 2, 2.5, 2.1], True),
        ({"patience": 2}, [3, 2, 2.5, 1.9], False),
        ({"patience": 2, "min_delta": 0.5}, [3, 2, 1.9, 1.8], True),
        ({"patience": 2, "metric": "accuracy"}, [0.5, 0.4, 0.3], False),
        ({"patience": 2, "metric": "accuracy"}, [0.5, 0.6, 0.7], True),
        ({"patience": 2, "metric": "loss", "mode": "max"}, [3, 2, 1], True),
        ({"patience": 2}, [math.nan, math.nan], True),
        ({"patience": 3}, [math.nan, 1, 0.5], False),
        ({"patience": 1, "metric": "absent"}, [1], True),
    ],
)
def test_training_stops_after_so_many_evaluations_without_improvement(rule: dict[str, object], losses: list[float], *, stops: bool) -> None:
    assert (no_improvement(results(*losses), EarlyStopping.model_validate(rule)) is not None) == stops


def test_more_evaluations_than_are_kept_are_no_patience() -> None:
    flat = results(*[1.0] * evaluations.MAX_RETAINED)
    assert no_improvement(flat, EarlyStopping(patience=evaluations.MAX_RETAINED - 1))
    patient = Train.model_validate({"workload": "mnist_mlp", "early_stopping": {"patience": evaluations.MAX_RETAINED}})
    assert [conflict.path for conflict in settings_rules.conflicts(patient, "single")] == [("early_stopping", "patience")]


def test_evaluations_of_a_lost_attempt_do_not_end_the_run(tmp_path: Path) -> None:
    """The chief evaluates before it saves: the next attempt resumes from an earlier step."""
    for step, loss in ((100, 1.0), (200, 0.5), (300, 0.7), (400, 0.6)):
        evaluations.append(tmp_path, step, {"loss": loss})
    train = Train.model_validate({"workload": "mnist_mlp", "steps": 1000, "early_stopping": {"patience": 2}})
    assert EarlyStop(train, tmp_path)(300) is None
    assert EarlyStop(train, tmp_path)(400) == "loss did not improve on 0.5 in 2 evaluations (train.early_stopping)"


def test_a_run_without_improvement_saves_and_succeeds(tmp_path: Path) -> None:
    rule = {"metric": "accuracy", "patience": 2, "min_delta": 1.0}  # no evaluation improves on the first
    session, outcome, output = train(tmp_path, 5000, {}, early_stopping=rule, summaries={"every_steps": 0})
    assert outcome.finished
    assert 60 <= session.step < 5000
    assert run_state.read(tmp_path)["state"] == "succeeded"
    assert "did not improve on" in run_state.read(tmp_path)["ended_early"]
    assert any("train.early_stopping" in event["message"] for event in output.events("notice"))
    assert output.events("checkpoint")[-1]["step"] == session.step
    assert Checkpoints(tmp_path / "checkpoints", session.model, session.optimizer, 1).latest is not None


def test_a_metric_that_evaluations_do_not_have_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"'acuracy'; the evaluations have loss, accuracy; did you mean 'accuracy'"):
        train(tmp_path, 10, early_stopping={"metric": "acuracy", "mode": "max"})


class Whole(Small):
    """Has metrics of the whole held-out set: `whole`, or none; with `fails` or `empty` in `params` they need a batch."""

    def held_out_metrics(self) -> "Whole | None":
        return self if "whole" in self._params else None

    def reset(self) -> None:
        pass

    def update(self, targets: Any, outputs: Any) -> None:
        pass

    def result(self) -> dict[str, float]:
        return {} if self._params.get("empty") else {"whole": 1 / int(not self._params.get("fails"))}


@pytest.mark.parametrize(
    "params, names",
    [
        ({}, ("loss", "accuracy")),
        ({"whole": 1}, ("loss", "accuracy", "whole")),
        ({"whole": 1, "fails": 1}, None),
        ({"whole": 1, "empty": 1}, None),
    ],
)
def test_the_names_of_an_evaluation_are_known_before_it(params: dict[str, Any], names: tuple[str, ...] | None) -> None:
    workload = Whole(params)
    assert model_ops.evaluated_names(workload, workload.model()) == names


@pytest.mark.parametrize("params", [{"whole": 1}, {"whole": 1, "empty": 1}])
def test_the_best_model_may_be_chosen_by_any_metric_of_an_evaluation(tmp_path: Path, params: dict[str, Any]) -> None:
    metric = "accuracy" if params.get("empty") else "whole"
    _, _, output = train(tmp_path, 20, params, data=Whole, export={"formats": ["keras"], "metric": metric, "mode": "max"})
    assert [event["metric"] for event in output.events("exported")] == [metric]


def test_a_best_model_without_a_direction_is_refused_before_training_even_if_no_name_is_known(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"'wholee', and its name does not show whether more or less of it is better"):
        train(tmp_path, 20, {"whole": 1, "empty": 1}, data=Whole, export={"formats": ["keras"], "metric": "wholee"})
    assert not list(tmp_path.glob("checkpoints/ckpt-*"))


@pytest.mark.parametrize("params", [{}, {"whole": 1}])
def test_the_prefix_of_metrics_in_keras_callbacks_is_refused_before_training(tmp_path: Path, params: dict[str, Any]) -> None:
    with pytest.raises(WorkloadError, match=r"'val_loss'; the evaluations have loss, accuracy.*; did you mean 'loss'"):
        train(tmp_path, 10, params, data=Whole, early_stopping={"metric": "val_loss"})


def test_a_run_ends_after_its_maximum_time_and_does_not_continue(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"max_seconds": 0.5, "evaluate": {"every_steps": 0}, "summaries": {"every_steps": 0}}
    session, outcome, _ = train(tmp_path, 1_000_000, {}, **settings)
    assert outcome.finished
    assert run_state.read(tmp_path)["trained_seconds"] >= 0.5
    resumed, outcome, output = train(tmp_path, 1_000_000, {}, **settings)
    assert outcome.finished
    assert resumed.step - session.step <= 2000  # one call
    assert any("train.max_seconds" in event["message"] for event in output.events("notice"))
