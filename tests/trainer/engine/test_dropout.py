"""Random layers on parameter servers: what one worker drops is nothing to another, nor to itself started again."""

import json
import sys
from pathlib import Path

import pytest

from tests import forked
from tests.trainer.engine.drive_dropout import STEPS

DRIVER = Path(__file__).with_name("drive_dropout.py")
Losses = dict[str, dict[str, float]]  # of who by the number of the step


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Losses]:
    scratch = tmp_path_factory.mktemp("servers")
    done = forked.run([sys.executable, str(DRIVER), str(scratch)], timeout=110, preload=forked.TENSORFLOW)
    assert done.stdout, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize("case", ["asynchronous", "compiled, of two batches", "synchronous", "started again"])
def test_the_same_batch_and_weights_give_each_step_of_each_worker_a_loss_of_its_own(report: dict[str, Losses], case: str) -> None:
    one, other = report[case].values()
    assert len(one.keys() & other.keys()) >= STEPS // 2
    losses = [*one.values(), *other.values()]
    assert len(set(losses)) == len(losses), report[case]
