"""Callbacks on parameter servers: they see current weights, may change the rate, and may change weights only when training is over."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.trainer.engine.drive_served_callbacks import KINDS

DRIVER = Path(__file__).with_name("drive_served_callbacks.py")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scratch = tmp_path_factory.mktemp("servers")
    process = forked.run([sys.executable, str(DRIVER), str(scratch)], timeout=180, preload=forked.TENSORFLOW)
    assert process.stdout, process.stderr[-3000:]
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_callbacks_see_current_weights_and_their_rate_reaches_the_servers(report: dict[str, Any], kind: str) -> None:
    result = report[kind]
    assert (result["step"], result["rate"]) == (15, 0.0)
    assert result["batches"] == [*range(5)] * 3
    first, second, third = result["seen"]
    assert first != second == third
    assert result["sum"] == pytest.approx(first)  # EarlyStopping restored the best weights when training was over


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_callback_that_changes_weights_is_refused_by_name(report: dict[str, Any], kind: str) -> None:
    message = report[kind]["refused"]
    assert message.startswith("the callback Changing.on_epoch_end has changed weights of the model, which strategy")
    assert "Change them in on_train_end, or train with single, mirrored or multi_worker_mirrored" in message
