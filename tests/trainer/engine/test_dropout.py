"""Random layers, tf.random and keras.random on parameter servers: each worker drops other units and draws other noise, also after its restart."""

from pathlib import Path

import pytest

from tests.trainer.engine.drive_dropout import STEPS
from tests.trainer.engine.drivers import run_driver

CASES = [
    "asynchronous",
    "asynchronous, started again",
    "compiled, of two batches",
    "synchronous",
    "noise",
    "noise, started again",
    "synchronous noise",
    "unseeded",
    "unseeded, started again",
    "compiled unseeded, of two batches",
]
DRIVER = Path(__file__).with_name("drive_dropout.py")
Losses = dict[str, dict[str, float]]  # of each worker, by the number of the step


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Losses]:
    return run_driver(DRIVER, tmp_path_factory.mktemp("servers"))


@pytest.mark.parametrize("case", CASES)
def test_each_step_of_each_worker_has_another_loss_with_the_same_batch_and_weights(report: dict[str, Losses], case: str) -> None:
    first, second = report[case].values()
    assert len(first.keys() & second.keys()) >= STEPS // 2
    losses = [*first.values(), *second.values()]
    assert len(set(losses)) == len(losses), report[case]
