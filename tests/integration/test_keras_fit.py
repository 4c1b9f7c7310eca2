"""examples/keras-fit: Keras' `fit` on two workers with its own callbacks, killed, stopped and resumed, as docs/keras.md says."""

import itertools
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.integration import leftovers
from tests.integration.running import EXAMPLES, Run, started
from tests.trainer.tensorboard_reader import read_events

EPOCHS = 10
ACCURACY = re.compile(r"2 workers, test accuracy (\d\.\d+)")


def example(**changes: Any) -> dict[str, Any]:
    """Return the example's spec, for any directory."""
    spec = yaml.safe_load((EXAMPLES / "keras-fit.yaml").read_text())
    return {**spec, "code": str(EXAMPLES / "keras-fit"), **changes}


def epochs(run: Run) -> list[list[int]]:
    """Return the epochs that worker-0 has begun, a list for each attempt that came to one."""
    attempts = run.log("worker-0").split('{"event":"started"')
    begun = [re.findall(rf"Z Epoch (\d+)/{EPOCHS}$", attempt, re.MULTILINE) for attempt in attempts]
    return [[int(epoch) for epoch in attempt] for attempt in begun if attempt]


@dataclass(frozen=True)
class Resumed:
    """A run whose worker-1 was killed, and that was stopped and resumed; its state after the stop, and the epochs of its attempts."""

    run: Run
    state_after_stop: str
    killed: list[int]
    stopped: list[int]
    ended: list[int]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resumed]:
    """Return the run that the tests below inspect."""
    directory = tmp_path_factory.mktemp("keras")
    with started(example(command=["python", "train.py", "--epochs", str(EPOCHS)]), directory) as run:
        run.until("the third epoch", lambda: 3 in list(itertools.chain(*epochs(run))))
        run.kill_training_process("worker-1")
        run.until("two epochs of the second attempt", lambda: len(epochs(run)) > 1 and len(epochs(run)[1]) > 1)
        run.launcher("down", run.name)
        state_after_stop = run.status()["state"]
        leftovers.assert_none(run.directory)
        run.launcher("up", str(directory / "keras-fit.yaml"))
        yield Resumed(run, state_after_stop, *epochs(run))


@pytest.mark.slow
def test_a_killed_worker_costs_at_most_the_epoch_that_had_begun(resumed: Resumed) -> None:
    assert resumed.run.events("worker-1", "restarting")[0]["exit_code"] == 128 + signal.SIGKILL
    last = resumed.killed[-1]
    assert resumed.killed == list(range(1, last + 1))
    assert resumed.stopped[0] in {last, last + 1}  # it may have ended as the worker was killed
    assert resumed.stopped[0] >= 3


@pytest.mark.slow
def test_a_stopped_run_resumes_in_the_epoch_of_the_stop(resumed: Resumed) -> None:
    last = resumed.stopped[-1]
    assert resumed.state_after_stop == "stopped"
    assert f"saved in epoch {last}, as it was asked to stop" in resumed.run.log("worker-0")
    assert resumed.ended == list(range(last, EPOCHS + 1))
    assert resumed.run.status()["state"] == "succeeded"


@pytest.mark.slow
def test_the_callbacks_have_written_into_the_run_directory(resumed: Resumed) -> None:
    import keras

    run = resumed.run
    match = ACCURACY.search(run.log("worker-0"))
    assert match
    assert float(match[1]) >= 0.97
    model = keras.models.load_model(run.directory / "results" / f"epoch-{EPOCHS}.keras")  # needs none of the example's code
    assert np.shape(model(np.zeros((1, 20), np.float32))) == (1, 10)
    assert read_events(run.directory / "logs" / "train").scalars("epoch_loss")
    assert sorted(path.name for path in (run.directory / "backup").iterdir()) == ["worker-0", "worker-1"]


@pytest.mark.slow
def test_the_same_script_runs_with_keras_2(tmp_path: Path) -> None:
    file = tmp_path / "keras-fit.yaml"
    file.write_text(yaml.safe_dump(example(command=["python", "train.py", "--epochs", "2"], env={"TF_USE_LEGACY_KERAS": "1"})))
    run = Run("keras-fit", tmp_path / "runs")
    run.launcher("up", str(file))
    assert run.status()["state"] == "succeeded"
    assert ACCURACY.search(run.log("worker-0"))
    assert [path.name for path in (run.directory / "backup").iterdir()] == ["chief"]  # the name that Keras 2 gives it
