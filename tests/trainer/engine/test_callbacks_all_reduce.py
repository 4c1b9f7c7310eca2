"""A callback's change on the chief holds in every task from the same step on; test_mirrored.py does the same with devices."""

from typing import Any

import pytest

from tests.trainer.engine.drivers import driven, reported

DRIVER = "drive_callbacks.py"


@pytest.fixture(scope="module")
def tasks() -> list[dict[str, Any]]:
    with driven(DRIVER, 2) as running:
        return [reported(task) for task in running]


def check_changes(result: dict[str, Any]) -> None:
    """Check that weights and rate are those that the callback `Changing` has set."""
    assert (result["step"], result["finished"], result["rate"]) == (8, True, 0.0)  # three epochs of 400 examples, 160 a step
    assert result["weight sums"][0] == 0.5 * result["elements"]
    assert result["weight sums"][0] != result["weight sums"][1] == result["weight sums"][2] == pytest.approx(result["sum"])


@pytest.mark.parametrize("hooks", ["epochs", "batches", "chief only"])
def test_two_tasks_end_with_the_same_weights_rate_and_step(tasks: list[dict[str, Any]], hooks: str) -> None:
    chief, worker = (task[hooks] for task in tasks)
    check_changes(chief)
    assert worker["weight sums"] == []
    for key in ("step", "finished", "rate", "sum"):
        assert worker[key] == chief[key], key


def test_a_resumed_task_gets_the_state_that_only_the_chief_has_stored(tasks: list[dict[str, Any]]) -> None:
    chief, worker = (task["resumed"] for task in tasks)
    assert (chief["halves"]["restored"], chief["halves"]["stored"]) == ([10], True)
    assert (worker["halves"]["restored"], worker["halves"]["stored"]) == ([], False)
    for task in (chief, worker):
        assert task["halves"]["step"] == 20
        assert task["halves"]["values"] == task["whole"]["values"]  # weights, the optimizer's moments and step count, the task's own seeds
    seeds = [task["halves"]["global seed"] for task in (chief, worker)]
    assert [seeds[1][0] - seeds[0][0], *(seed[1] for seed in seeds)] == [1, 20, 20]  # one draw a step
