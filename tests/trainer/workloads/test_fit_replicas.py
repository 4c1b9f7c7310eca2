"""Two replicas train a compiled Keras model as `fit` does one on both of their batches, or say why not."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.trainer.workloads.drive_fit import REFUSED, SAME

pytestmark = [pytest.mark.slow, pytest.mark.takes_minutes, pytest.mark.timeout(600)]

DRIVER = Path(__file__).with_name("drive_fit.py")
WORDS = {
    "guide": "has train_step of its own, which parameter_server does not run: .* Use strategy single, mirrored or multi_worker_mirrored",
    "moving": "compute_loss of Moving changes .*seen, which parameter_server does not save",
    "summed": "a loss whose reduction is 'sum', but a step takes the mean of its 2 batches; use reduction='sum_over_batch_size'",
    "gathered": "gradient_accumulation_steps=2, which acts only in some steps, .* set train.gradients.accumulate",
    "overwritten": "ema_overwrite_frequency=2, which acts only in some steps, .*; leave it out",
    "twice": r"Twice\.train_step applies gradients more than once, which several replicas cannot follow\. Compile .*, or train with strategy single",
    "nested": r"Nested\.train_step applies .* tf\.functions? of its own, which several replicas cannot follow",
    "perturbed": r"Perturbed\.train_step changes dense.*/kernel by other means than self\.optimizer",
}


@pytest.fixture(scope="module", params=SAME)
def reported(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    done = forked.run([sys.executable, str(DRIVER), request.param], timeout=580, preload=forked.TENSORFLOW)
    assert done.stdout, done.stderr[-4000:]
    return request.param, json.loads(done.stdout.splitlines()[-1])


def test_they_learn_what_one_learns_from_both_batches(reported: tuple[str, dict[str, Any]]) -> None:
    strategy, report = reported
    assert {name: values for name in SAME[strategy] if max((values := report[name]).values()) > 1e-4} == {}


def test_what_they_cannot_follow_is_refused_in_words(reported: tuple[str, dict[str, Any]]) -> None:
    strategy, report = reported
    for name in REFUSED[strategy]:
        assert re.search(WORDS[name], report.get(name, "it trained")), name
