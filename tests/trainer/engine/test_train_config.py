"""Settings become a complete configuration."""

from typing import Any

import pytest

from trainer.engine.train_config import TrainConfig, train_config
from trainer.settings import TrainerSettings
from trainer.workloads.errors import WorkloadError


def build_config(train: dict[str, Any] | None, **settings: Any) -> TrainConfig:
    base = {"run": "r", "run_dir": "/runs/r", "scratch_dir": "/scratch"}
    return train_config(TrainerSettings.model_validate({**base, **settings, "train": train}))


def test_the_workload_decides_settings_that_the_spec_leaves_out() -> None:
    mnist_config = build_config({"workload": "mnist", "steps": 7})
    assert mnist_config.steps == 7
    assert mnist_config.batch_size == 100
    assert (mnist_config.evaluate_every, mnist_config.summaries_every, mnist_config.profile_every) == (10, 10, 100)
    assert mnist_config.checkpoint.every_steps == 100
    assert mnist_config.steps_per_execution is None


@pytest.mark.parametrize("workload", ["mnist", "own.code:model"])
def test_epochs_replace_steps(workload: str) -> None:
    """Also in the task, which gets the settings of the first configuration without those that are not set."""
    first = build_config({"workload": workload, "epochs": 3})
    in_task = build_config(first.train.model_dump(exclude_none=True))
    assert (first.train.epochs, first.train.steps) == (in_task.train.epochs, in_task.train.steps) == (3, None)


def test_zero_means_never() -> None:
    assert build_config({"workload": "mnist", "evaluate": {"every_steps": 0}}).evaluate_every == 0


def test_a_chief_with_an_evaluator_does_not_evaluate() -> None:
    assert build_config({"workload": "mnist"}, has_evaluator=True).evaluate_every == 0


def test_a_missing_train_section_is_an_error_with_a_remedy() -> None:
    with pytest.raises(WorkloadError, match=r"no `train` section; give one"):
        build_config(None)


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
def test_a_users_own_model_is_exported_unless_the_spec_prevents_it(train: dict[str, Any], settings: dict[str, Any], exports: bool) -> None:
    assert (build_config(train, **settings).export is not None) == exports
