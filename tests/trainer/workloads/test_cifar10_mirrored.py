"""cifar10 on two devices learns the same as one process with a batch as large as both: weights, averages, learning rate."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.engine.drivers import run_driver

DRIVER = Path(__file__).with_name("drive_mirrored.py")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_driver(DRIVER, tmp_path_factory.mktemp("mirrored"))


def test_weights_and_averages_are_the_same(report: dict[str, Any]) -> None:
    assert report["replicas"] == 2
    assert len(report["differences"]) == 2 * 10 + 1
    # Sums in another order differ in the last bits, and which of two nearly equal pixels is the larger may change.
    assert max(report["differences"].values()) < 2e-5
    assert sum(moved > 1e-3 for moved in report["moved"].values()) > 15


def test_losses_and_the_steps_of_350_epochs_are_the_same(report: dict[str, Any]) -> None:
    mirrored, single = report["losses"]
    assert mirrored == pytest.approx(single, rel=1e-5)
    assert report["rates"] == [350 * 10_000 // 16] * 2


def test_averages_are_evaluated_on_all_devices_and_training_continues_with_the_weights(report: dict[str, Any]) -> None:
    for mirrored, single in zip(*report["evaluations"], strict=True):
        assert mirrored == pytest.approx(single, rel=1e-5)
    assert report["evaluations"][0][0] != report["evaluations"][0][1]
    assert report["unchanged"]
