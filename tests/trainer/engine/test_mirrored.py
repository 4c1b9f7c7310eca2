"""Two devices learn what one process learns with twice the batch, for all settings of gradients and precision."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.engine.drive_mirrored import CASES
from tests.trainer.engine.drivers import run_driver
from tests.trainer.engine.test_callbacks_all_reduce import check_changes

DRIVER = Path(__file__).with_name("drive_mirrored.py")
# Half precision rounds at 1e-3, and two devices add up in another order.
TOLERANCE = {"float16": 5e-3}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return run_driver(DRIVER)


@pytest.mark.parametrize("case", sorted(CASES))
def test_two_devices_equal_one_process_with_twice_the_batch(report: dict[str, Any], case: str) -> None:
    assert report[case] < TOLERANCE.get(case, 2e-5)


def test_a_falling_rate_may_become_a_constant_on_resume(report: dict[str, Any]) -> None:
    assert report["resumed"] < 1e-6


def test_each_device_draws_its_own_numbers_and_others_after_a_resume(report: dict[str, Any]) -> None:
    assert len(set(report["noise"].values())) == 6, report["noise"]


@pytest.mark.parametrize("layer", ["dropout", "unseeded"])
def test_random_layers_draw_other_numbers_on_each_device_also_after_an_evaluation(report: dict[str, Any], layer: str) -> None:
    losses = report[layer]
    assert losses["2 from 0"] == losses["2 from 5"] != losses["1 from 0"]
    assert losses["2 after a draw"] != losses["1 after a draw"]


@pytest.mark.parametrize("hooks", ["epochs", "batches"])
def test_two_devices_hold_the_same_weights_when_a_callback_has_changed_them(report: dict[str, Any], hooks: str) -> None:
    changes = report["callbacks"][hooks]
    check_changes(changes)
    one, other = changes["replicas"]
    assert one == other
