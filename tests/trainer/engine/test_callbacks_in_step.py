"""What a callback changes on the chief holds on every task and device from the same step on."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.engine.drivers import driven

DRIVER = "drive_callbacks.py"


@pytest.fixture(scope="module")
def tasks() -> list[dict[str, Any]]:
    with driven(DRIVER, 2) as started:
        return [json.loads(task.communicate(timeout=180)[0].splitlines()[-1]) for task in started]


@pytest.fixture(scope="module")
def devices() -> dict[str, Any]:
    driver = Path(__file__).with_name(DRIVER)
    done = subprocess.run([sys.executable, str(driver), "mirrored"], capture_output=True, text=True, timeout=110, check=False)
    assert done.stdout, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check_changes(told: dict[str, Any]) -> None:
    assert (told["step"], told["finished"], told["rate"]) == (38, True, 0.0)  # three epochs of 400 examples, 32 a step
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


@pytest.mark.parametrize("hooks", ["epochs", "batches"])
def test_two_devices_hold_the_same_weights(devices: dict[str, Any], hooks: str) -> None:
    check_changes(devices[hooks])
    one, other = devices[hooks]["replicas"]
    assert one == other
