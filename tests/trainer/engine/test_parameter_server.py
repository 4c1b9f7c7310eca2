"""Parameter servers compute what one process computes: with one worker, the same weights.

Callbacks see current weights, may change the rate, and may change weights only when training is over.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.engine.drive_parameter_server import OPTIMIZERS, SESSIONS, STEPS, UPDATES
from tests.trainer.engine.drivers import run_driver
from tests.trainer.engine.served_callbacks import KINDS

DRIVER = Path(__file__).with_name("drive_parameter_server.py")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_driver(DRIVER, tmp_path_factory.mktemp("servers"))


@pytest.mark.parametrize("case", sorted(SESSIONS))
def test_one_worker_on_two_servers_learns_what_one_process_learns(report: dict[str, Any], case: str) -> None:
    assert report["cases"][case]["step"] == STEPS
    assert report["cases"][case]["difference"] < 1e-4


@pytest.mark.parametrize("case", sorted(OPTIMIZERS))
def test_two_servers_update_variables_as_one_process_does(report: dict[str, Any], case: str) -> None:
    assert report["cases"][case]["step"] == UPDATES
    assert report["cases"][case]["difference"] < 1e-5


@pytest.mark.parametrize("case", sorted([*SESSIONS, *OPTIMIZERS]))
def test_state_goes_to_the_servers_and_back_unchanged(report: dict[str, Any], case: str) -> None:
    assert report["cases"][case]["roundtrip"] == 0


@pytest.mark.parametrize("how", ["plain", "compiled"])
def test_random_layers_learn_too(report: dict[str, Any], how: str) -> None:
    losses = report["dropout_losses"][how]
    assert losses[-1] < losses[0] * 0.7


def test_data_that_ends_too_early_is_an_error_with_a_remedy(report: dict[str, Any]) -> None:
    assert "gives 5 batches, but the run may take 30 more; it must be endless" in report["ended"]["known"]
    assert "has ended before the last step, 30; it must be endless" in report["ended"]["unknown"]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_callbacks_see_current_weights_and_their_rate_reaches_the_servers(report: dict[str, Any], kind: str) -> None:
    result = report["callbacks"][kind]
    assert (result["step"], result["rate"]) == (15, 0.0)
    assert result["batches"] == [*range(5)] * 3
    first, second, third = result["seen"]
    assert first != second == third
    assert result["sum"] == pytest.approx(first)  # EarlyStopping restored the best weights when training was over


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_callback_that_changes_weights_is_refused_by_name(report: dict[str, Any], kind: str) -> None:
    message = report["callbacks"][kind]["refused"]
    assert message.startswith("the callback Changing.on_epoch_end has changed weights of the model, which strategy")
    assert "Change them in on_train_end, or train with single, mirrored or multi_worker_mirrored" in message


def test_every_server_ends_with_success_when_notified(report: dict[str, Any]) -> None:
    assert report["missed"] == []
    assert report["exit_codes"] == [0, 0, 0]
