"""Two devices learn what one process learns with the double batch, whatever is set about gradients and precision."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.engine.drive_mirrored import CASES

DRIVER = Path(__file__).with_name("drive_mirrored.py")
# Half precision rounds at 1e-3, and the two add up in another order.
TOLERANCE = {"float16": 5e-3}


@pytest.fixture(scope="module")
def differences() -> dict[str, float]:
    done = subprocess.run([sys.executable, str(DRIVER)], capture_output=True, text=True, timeout=110, check=False)
    assert done.stdout, done.stderr[-3000:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("case", sorted(CASES))
def test_two_devices_are_one_with_the_double_batch(differences: dict[str, float], case: str) -> None:
    assert differences[case] < TOLERANCE.get(case, 2e-5)


def test_a_rate_that_fell_may_become_a_constant_on_resume(differences: dict[str, float]) -> None:
    assert differences["resumed"] < 1e-6
