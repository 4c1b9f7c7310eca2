"""linear_regression: ends at the line through its points, saves by the clock, keeps one checkpoint, resumes from it."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.engine.test_loop import Output
from tests.trainer.tensorboard_reader import read_events
from trainer.engine import loop
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.replicated import ReplicatedSession
from trainer.engine.train_config import train_config
from trainer.events import Reporter
from trainer.settings import Train, TrainerSettings
from trainer.workloads.catalog import with_defaults
from trainer.workloads.errors import DataError, WorkloadError
from trainer.workloads.linear_regression import LinearRegression
from trainer.workloads.protocol import Shard


@pytest.fixture(scope="module")
def workload() -> LinearRegression:
    return LinearRegression(params={}, data="synthetic", seed=0)


def trained(run_dir: Path, steps: int, stop_after: int | None = None, **train: Any) -> tuple[Any, Output]:
    values = {"run": "line", "run_dir": str(run_dir), "scratch_dir": str(run_dir / "scratch")}
    config = train_config(TrainerSettings.model_validate({**values, "train": {"workload": "linear_regression", "steps": steps, **train}}))
    line = LinearRegression(params={}, data="synthetic", seed=0)
    session = ReplicatedSession(line, config, AllReduce())
    output = Output()
    stop_requested = (lambda: session.step >= stop_after) if stop_after else (lambda: False)
    return loop.run(session, line, config, Reporter("chief", output), stop_requested), output


def test_steps_checkpoints_and_optimizer_have_their_defaults() -> None:
    train = with_defaults(Train(workload="linear_regression"))
    assert (train.steps, train.batch_size) == (2000 * 100, 1)
    assert (train.checkpoint.every_seconds, train.checkpoint.every_steps, train.checkpoint.keep) == (50, None, 1)
    optimizer = LinearRegression(params={}, data="synthetic", seed=0).optimizer()
    assert isinstance(optimizer, keras.optimizers.SGD)
    assert float(optimizer.learning_rate) == pytest.approx(0.001)


def test_the_points_lie_around_the_line(workload: LinearRegression) -> None:
    assert workload.x.shape == workload.y.shape == (100, 1)
    assert (workload.x.min(), workload.x.max()) == (-1, 1)
    np.testing.assert_array_equal(workload.y, LinearRegression(params={}, data="synthetic", seed=9).y)
    assert (workload.y - 2 * workload.x).std() == pytest.approx(0.3, abs=0.05)


def test_outputs_hold_the_line_beside_its_predictions(workload: LinearRegression) -> None:
    model = workload.model()
    model.set_weights([np.float32(3), np.float32(-1)])
    x, y = next(iter(workload.train_data(Shard(4, seed=0))))
    outputs = model(x)
    np.testing.assert_allclose(outputs["y"], 3 * x - 1, rtol=1e-6)
    assert float(workload.loss(y, outputs)) == pytest.approx(float(tf.reduce_mean((y - 3 * x + 1) ** 2)), rel=1e-5)
    assert {name: float(value) for name, value in workload.metrics(y, outputs).items()} == {"w": 3, "b": -1}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Output, Path]:
    """A run without a stop: its result, its events, its directory."""
    run_dir = tmp_path_factory.mktemp("straight")
    return *trained(run_dir, 10_000), run_dir


def test_it_ends_near_w_2_and_b_0(straight: tuple[Any, Output, Path]) -> None:
    outcome, _, _ = straight
    assert outcome.metrics["w"] == pytest.approx(2, abs=0.15)
    assert outcome.metrics["b"] == pytest.approx(0, abs=0.1)


def test_progress_evaluation_and_summaries_show_the_line(straight: tuple[Any, Output, Path]) -> None:
    outcome, output, run_dir = straight
    assert output.events("progress")[-1]["metrics"].keys() == {"w", "b"}
    assert output.events("evaluated")[-1]["metrics"] == outcome.metrics
    assert outcome.metrics.keys() == {"loss", "w", "b"}
    written = dict(read_events(run_dir / "logs" / "train").scalars("line/w"))
    assert written.keys() == set(range(1000, 10_001, 1000))
    assert written[10_000] == pytest.approx(outcome.metrics["w"], abs=1e-6)


def test_it_saves_by_the_clock_keeps_one_checkpoint_and_resumes_where_it_was_stopped(
    straight: tuple[Any, Output, Path], tmp_path: Path
) -> None:
    first, output = trained(tmp_path, 10_000, stop_after=4000, steps_per_execution=1000, checkpoint={"every_seconds": 1e-6})
    assert not first.finished
    steps = [event["step"] for event in output.events("checkpoint")]
    assert steps[:4] == [1000, 2000, 3000, 4000]
    assert steps[-1] < 10_000
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.index")] == [f"ckpt-{steps[-1]}.index"]
    second, output = trained(tmp_path, 10_000)
    assert output.events("restored")[0]["step"] == steps[-1]
    assert second.metrics == straight[0].metrics


def test_wrong_settings_are_named() -> None:
    with pytest.raises(DataError, match=r"train\.data download: linear_regression makes its own points"):
        LinearRegression(params={}, data="download", seed=0)
    with pytest.raises(WorkloadError, match=r"train\.params\.slope"):
        LinearRegression(params={"slope": 3}, data="synthetic", seed=0)
