"""Settings become a job with nothing left open."""

from typing import Any

import pytest

from trainer.engine.job import Job, job
from trainer.settings import TrainerSettings
from trainer.workloads.errors import WorkloadError


def made(train: dict[str, Any] | None, **settings: Any) -> Job:
    base = {"run": "r", "run_dir": "/runs/r", "scratch_dir": "/scratch"}
    return job(TrainerSettings.model_validate({**base, **settings, "train": train}))


def test_what_the_spec_leaves_out_the_workload_decides() -> None:
    made_job = made({"workload": "mnist", "steps": 7})
    assert made_job.steps == 7
    assert made_job.batch_size == 100
    assert (made_job.evaluate_every, made_job.summaries_every, made_job.profile_every) == (10, 10, 100)
    assert made_job.checkpoint.every_steps == 100
    assert made_job.steps_per_execution is None


@pytest.mark.parametrize("workload", ["mnist", "own.code:model"])
def test_epochs_take_the_place_of_steps(workload: str) -> None:
    """Also once more in the task, which is not told what is not set."""
    first = made({"workload": workload, "epochs": 3})
    again = made(first.train.model_dump(exclude_none=True))
    assert (first.train.epochs, first.train.steps) == (again.train.epochs, again.train.steps) == (3, None)


def test_zero_is_never() -> None:
    assert made({"workload": "mnist", "evaluate": {"every_steps": 0}}).evaluate_every == 0


def test_an_evaluator_takes_the_chiefs_evaluations() -> None:
    assert made({"workload": "mnist"}, has_evaluator=True).evaluate_every == 0


def test_nothing_to_train_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(WorkloadError, match=r"no `train` section; give one"):
        made(None)


@pytest.mark.parametrize(
    "train, settings, exports",
    [
        ({"workload": "mnist"}, {}, False),
        ({"workload": "mnist"}, {"has_evaluator": True}, True),
        ({"workload": "mnist", "export": {}}, {}, True),
        ({"workload": "mine:model"}, {}, True),
        ({"workload": "mine:model", "export": {"formats": []}}, {"has_evaluator": True}, False),
        ({"workload": "mine:program"}, {"strategy": "manual"}, False),
    ],
)
def test_a_model_of_ones_own_is_exported_unless_told_not_to(train: dict[str, Any], settings: dict[str, Any], exports: bool) -> None:
    assert (made(train, **settings).export is not None) == exports
