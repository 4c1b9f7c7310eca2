"""Every form of a user's own workload trains on every strategy: classes, compiled Keras models, model functions."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.engine.drivers import run_driver
from tests.trainer.workloads.drive_forms import EXACT, STEPS, SYNC, forms
from trainer.strategies import TRAINING_STRATEGIES

pytestmark = [pytest.mark.slow, pytest.mark.takes_minutes]

DRIVER = Path(__file__).with_name("drive_forms.py")
METRICS = {
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
    """The report of each strategy's tasks, which run when it is first read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reports: dict[str, dict[str, Any]] = {}

    def __getitem__(self, strategy: str) -> dict[str, Any]:
        if strategy not in self._reports:
            scratch = self._directory / strategy
            scratch.mkdir(exist_ok=True)
            self._reports[strategy] = run_driver(DRIVER, strategy, scratch)
        return self._reports[strategy]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return Reports(tmp_path_factory.mktemp("forms"))


CASES = [(strategy, form) for strategy in TRAINING_STRATEGIES for form in forms(strategy)]


# A single process shows that each form learns; the other strategies train the forms again, in their own clusters.
@pytest.mark.parametrize("strategy,form", [case if case[0] == "single" else pytest.param(*case, marks=pytest.mark.slow) for case in CASES])
def test_each_form_learns_on_each_strategy(reports: Reports, strategy: str, form: str) -> None:
    report = reports[strategy][form]
    # A loss is None if the servers have completed their rounds before a worker's call ends.
    losses = [loss for loss in report["losses"] if loss is not None]
    assert report["evaluated"]["loss"] < 0.7 * losses[0]  # dropout and the like are off
    assert report["evaluated"].keys() == METRICS[form.removesuffix(SYNC)]
    assert all(math.isfinite(value) for value in report["evaluated"].values())
    for name in ("accuracy", "binary_accuracy", "sign_accuracy", "auc"):
        assert report["evaluated"].get(name, 1) > 0.85
    assert report["restored"] == STEPS
    assert report["lost"] == report["lost_without_optimizer"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("form", EXACT)
def test_one_worker_on_parameter_servers_learns_what_one_process_learns(reports: Reports, form: str) -> None:
    for single, served in zip(reports["single"][form]["weights"], reports["parameter_server"][form]["weights"], strict=True):
        np.testing.assert_allclose(served, single, atol=2e-3)
