"""Two replicas train a compiled Keras model like `fit` with both of their batches joined, or refuse it with the reason."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.engine.drivers import run_driver
from tests.trainer.workloads.drive_fit import REFUSED, SAME

pytestmark = [pytest.mark.slow, pytest.mark.takes_minutes]

DRIVER = Path(__file__).with_name("drive_fit.py")
MESSAGES = {
    "guide": "has train_step of its own, which parameter_server does not run: .* Use strategy single, mirrored or multi_worker_mirrored",
    "moving": "compute_loss of Moving changes .*seen, which parameter_server does not save",
    "scaled": r"scales the loss step by step .*, and parameter servers do not do that; set mixed_bfloat16",
    "summed": "a loss whose reduction is 'sum', but a step takes the mean of its 2 batches; use reduction='sum_over_batch_size'",
    "gathered": "gradient_accumulation_steps=2, which acts only in some steps, .* set train.gradients.accumulate",
    "overwritten": "ema_overwrite_frequency=2, which acts only in some steps, .*; leave it out",
    "twice": r"Twice\.train_step applies gradients more than once, which several replicas cannot follow\. Compile .*, or train with strategy single",
    "nested": r"Nested\.train_step applies .* tf\.functions? of its own, which several replicas cannot follow",
    "perturbed": r"Perturbed\.train_step changes dense.*/kernel by other means than self\.optimizer",
}


@pytest.fixture(scope="module", params=SAME)
def strategy_report(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return request.param, run_driver(DRIVER, request.param)


def test_replicas_learn_the_same_as_one_process_from_both_batches(strategy_report: tuple[str, dict[str, Any]]) -> None:
    strategy, report = strategy_report
    assert {name: values for name in SAME[strategy] if max((values := report[name]).values()) > 1e-4} == {}


def test_a_model_that_replicas_cannot_train_is_refused_with_the_reason(strategy_report: tuple[str, dict[str, Any]]) -> None:
    strategy, report = strategy_report
    for name in REFUSED[strategy]:
        assert re.search(MESSAGES[name], report.get(name, "it trained")), name
