"""A callback's change on the chief holds on every task from the same step on; test_mirrored.py has devices."""

from typing import Any

import pytest

from tests.trainer.engine.drivers import driven, reported

DRIVER = "drive_callbacks.py"


@pytest.fixture(scope="module")
def tasks() -> list[dict[str, Any]]:
    with driven(DRIVER, 2) as started:
        return [reported(task) for task in started]


def check_changes(told: dict[str, Any]) -> None:
    assert (told["step"], told["finished"], told["rate"]) == (8, True, 0.0)  # three epochs of 400 examples, 160 a step
    assert told["seen"][0] == 0.5 * told["elements"]
    assert told["seen"][0] != told["seen"][1] == told["seen"][2] == pytest.approx(told["sum"])


@pytest.mark.parametrize("hooks", ["epochs", "batches", "chief alone"])
def test_two_tasks_hold_the_same_weights_and_rate_and_end_with_the_same_step(tasks: list[dict[str, Any]], hooks: str) -> None:
    chief, worker = (task[hooks] for task in tasks)
    check_changes(chief)
    assert worker["seen"] == []
    assert {key: worker[key] for key in ("step", "finished", "rate", "sum")} == {
        key: chief[key] for key in ("step", "finished", "rate", "sum")
    }


def test_a_task_gets_from_the_chief_what_that_alone_has_stored(tasks: list[dict[str, Any]]) -> None:
    chief, worker = (task["resumed"] for task in tasks)
    assert (chief["halves"]["restored"], chief["halves"]["stored"]) == ([10], True)
    assert (worker["halves"]["restored"], worker["halves"]["stored"]) == ([], False)
    for task in (chief, worker):
        assert task["halves"]["step"] == 20
        assert task["halves"]["values"] == task["whole"]["values"]  # weights, the optimizer's moments and its count, its own seeds
