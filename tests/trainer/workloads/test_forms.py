"""Every form of a user's own workload trains on every strategy: classes, compiled Keras models, model functions."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import forked
from tests.trainer.workloads.drive_forms import EXACT, STEPS, SYNC, forms
from trainer.strategies import TRAINING

pytestmark = [pytest.mark.slow, pytest.mark.takes_minutes]

DRIVER = Path(__file__).with_name("drive_forms.py")
TOLD = {
    "compiled:model": {"loss", "accuracy", "auc"},
    "compiled:random": {"loss", "binary_accuracy"},
    "outputs:model": {"loss", "sign_accuracy", "total_mae"},
    "subclassed:model": {"loss", "mae"},
    "functions:two": {"loss", "accuracy"},
    "functions:three": {"loss", "accuracy"},
    "functions:four": {"loss", "accuracy"},
    "points:Points": {"loss", "mae"},
}


class Reports:
    """Reports of each strategy's tasks, run when first asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, dict[str, Any]] = {}

    def __getitem__(self, strategy: str) -> dict[str, Any]:
        if strategy not in self._known:
            scratch = self._directory / strategy
            scratch.mkdir(exist_ok=True)
            done = forked.run([sys.executable, str(DRIVER), strategy, str(scratch)], timeout=280, preload=forked.TENSORFLOW)
            assert done.stdout, f"{strategy}: {done.stderr[-4000:]}"
            self._known[strategy] = json.loads(done.stdout.splitlines()[-1])
        return self._known[strategy]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return Reports(tmp_path_factory.mktemp("forms"))


CASES = [(strategy, form) for strategy in TRAINING for form in forms(strategy)]


# One process shows that each form learns; the others run the forms once more, in clusters of their own.
@pytest.mark.timeout(320)
@pytest.mark.parametrize("strategy,form", [case if case[0] == "single" else pytest.param(*case, marks=pytest.mark.slow) for case in CASES])
def test_each_form_learns_on_each_strategy(reports: Reports, strategy: str, form: str) -> None:
    report = reports[strategy][form]
    told = [loss for loss in report["losses"] if loss is not None]  # servers may have done their rounds before a worker's call ends
    assert report["evaluated"]["loss"] < 0.7 * told[0]  # dropout and the like are off
    assert report["evaluated"].keys() == TOLD[form.removesuffix(SYNC)]
    assert all(math.isfinite(value) for value in report["evaluated"].values())
    for name in ("accuracy", "binary_accuracy", "sign_accuracy", "auc"):
        assert report["evaluated"].get(name, 1) > 0.85
    assert report["restored"] == STEPS
    assert report["lost"] == report["lost_by_the_model_alone"] == 0


@pytest.mark.slow
@pytest.mark.timeout(320)
@pytest.mark.parametrize("form", EXACT)
def test_one_worker_on_parameter_servers_learns_what_one_process_learns(reports: Reports, form: str) -> None:
    for here, there in zip(reports["single"][form]["weights"], reports["parameter_server"][form]["weights"], strict=True):
        np.testing.assert_allclose(there, here, atol=2e-3)
