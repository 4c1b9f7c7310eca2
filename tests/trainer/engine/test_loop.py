"""The loop on real sessions in this process: resume is exact, files are written when they are due."""

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.engine.small import Poisoned, Small
from trainer.engine import loop, run_state
from trainer.engine.checkpoints import CheckpointError
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.replicated import ReplicatedSession
from trainer.engine.session import CallProgress, DivergedError, NonFinite
from trainer.engine.train_config import TrainConfig, train_config
from trainer.events import Reporter
from trainer.settings import TrainerSettings
from trainer.workloads.seeding import seeded


class Output(io.StringIO):
    """Collects the events that a reporter writes."""

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in map(json.loads, self.getvalue().splitlines()) if event["event"] == kind]


def settings(run_dir: Path, steps: int, *, has_evaluator: bool = False, **train: Any) -> TrainConfig:
    base = {
        "workload": "small:Small",
        "steps": steps,
        "batch_size": 16,
        "checkpoint": {"every_steps": 10, "keep": 2},
        "evaluate": {"every_steps": 20, "batch_size": 100},
        "summaries": {"every_steps": 10, "profile_every_steps": 0},
        "export": {"formats": []},
    }
    return train_config(
        TrainerSettings.model_validate(
            {
                "run": "small",
                "run_dir": str(run_dir),
                "scratch_dir": str(run_dir / "scratch"),
                "has_evaluator": has_evaluator,
                "grace_period": 300,  # the last save of a busy machine has taken longer than the default
                "train": {**base, **train},
            }
        )
    )


def train(
    run_dir: Path,
    steps: int,
    params: dict[str, Any] | None = None,
    stop_after: int | None = None,
    kind: type[ReplicatedSession] = ReplicatedSession,
    data: Callable[[dict[str, Any]], Any] = Small,
    **changes: Any,
) -> tuple[Any, Any, Output]:
    """Train in this process; return the session, the outcome and the reported events."""
    workload = data({"dropout": True, "normalised": True} if params is None else params)
    config = settings(run_dir, steps, **changes)
    session = kind(workload, config, AllReduce())
    output = Output()
    should_stop = (lambda: session.step >= stop_after) if stop_after else (lambda: False)
    outcome = loop.run(session, workload, config, Reporter("chief", output), should_stop)
    return session, outcome, output


# Settings of runs whose evaluations and summaries no test looks at: TensorFlow takes half a second to prepare them.
ONLY_SAVED: dict[str, Any] = {"evaluate": {"every_steps": 0, "batch_size": 100}, "summaries": {"every_steps": 0, "profile_every_steps": 0}}


def state(session: Any) -> list[np.ndarray]:
    return [np.asarray(v.value) for v in (*session.model.variables, *session.optimizer.variables)]


@dataclass(frozen=True)
class Run:
    """A run's directory, and what `train` returned."""

    path: Path
    session: Any
    outcome: Any
    output: Output


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of 45 steps without an interruption."""
    path = tmp_path_factory.mktemp("straight")
    return Run(path, *train(path, 45, steps_per_execution=7, report_every_steps=10))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run, stopped after 33 steps, and a copy of its directory."""
    path = tmp_path_factory.mktemp("stopped")
    run = Run(path / "copy", *train(path / "run", 45, stop_after=33, steps_per_execution=1))
    shutil.copytree(path / "run", run.path)
    return run


@pytest.fixture(scope="module")
def resumed(stopped: Run) -> Run:
    """The stopped run, resumed."""
    path = stopped.path.with_name("run")
    return Run(path, *train(path, 45))


class Noisy(Small):
    """Draws in its loss by tf.random, and reads its held-out set as a model's own `eval_data` is read."""

    def loss(self, targets: Any, outputs: Any) -> Any:
        return super().loss(targets, outputs) * tf.random.uniform([])

    def eval_data(self, batch_size: int) -> tf.data.Dataset:
        with seeded(0):
            return super().eval_data(batch_size)


def test_evaluations_do_not_change_what_training_draws(tmp_path: Path) -> None:
    def weights(name: str, every_steps: int) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        evaluate = {"every_steps": every_steps, "batch_size": 100}
        session, *_ = train(tmp_path / name, 6, {}, data=Noisy, steps_per_execution=2, **ONLY_SAVED | {"evaluate": evaluate})
        return state(session)

    for alone, evaluated in zip(weights("alone", 0), weights("evaluated", 2), strict=True):
        np.testing.assert_array_equal(alone, evaluated)


def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one_for_any_steps_per_execution(straight: Run, resumed: Run) -> None:
    assert resumed.outcome.step == straight.outcome.step == 45
    for whole, half in zip(state(straight.session), state(resumed.session), strict=True):
        np.testing.assert_array_equal(whole, half)


def test_checkpoints_evaluations_and_progress_come_when_they_are_due(straight: Run, resumed: Run) -> None:
    path, output = straight.path, straight.output
    assert [event["step"] for event in output.events("checkpoint")] == [10, 20, 30, 40, 45]
    assert [event["step"] for event in output.events("evaluated")] == [20, 40, 45]
    assert [event["step"] for event in resumed.output.events("checkpoint")] == [40, 45]  # steps_per_execution is not set here
    assert sorted(path.name for path in (path / "checkpoints").glob("*.index")) == ["ckpt-40.index", "ckpt-45.index"]
    record = run_state.read(path)
    assert (record["state"], record["step"], record["steps"]) == ("succeeded", 45, 45)
    assert record["metrics"] == pytest.approx(straight.outcome.metrics)
    assert list(path.glob("logs/train/events*"))
    assert list(path.glob("logs/eval/events*"))
    progress = output.events("progress")
    assert [event["step"] for event in progress if event["step"] > 1] == [7, 10, 20, 30, 40, 45]
    for event in progress:
        assert event["loss"] > 0
        assert event["seconds_per_step"] * event["examples_per_second"] == pytest.approx(16)


def test_a_stop_saves_first_and_the_run_resumes_from_that_step(stopped: Run, resumed: Run) -> None:
    assert not stopped.outcome.finished
    assert stopped.outcome.step == 34
    assert stopped.output.events("checkpoint")[-1]["step"] == 34
    assert run_state.read(stopped.path)["state"] == "stopped"
    assert [event["step"] for event in resumed.output.events("restored")] == [34]
    assert resumed.outcome.finished


def test_a_complete_run_does_not_train_again(straight: Run) -> None:
    session, outcome, output = train(straight.path, 45)
    assert outcome.step == 45
    assert output.events("progress") == []
    for before, after in zip(state(straight.session), state(session), strict=True):
        np.testing.assert_array_equal(before, after)


class Ahead(ReplicatedSession):
    """Like a session with servers: `flush` waits for the steps under way, and the next `run` reports them."""

    _under_way = 0
    _flushed: CallProgress | None = None

    def flush(self) -> None:
        if self._under_way:
            self._flushed = super().run(self._under_way)
            self._under_way = 0

    def run(self, steps: int, *, stop: bool = False, finish: bool = False, next_steps: int = 0) -> CallProgress:
        flushed, self._flushed = self._flushed, None
        if flushed is not None:
            return flushed
        self._under_way = min(12, 60 - self.step - steps)
        return super().run(steps, stop=stop, finish=finish, next_steps=next_steps)


def test_no_step_is_saved_twice_if_a_save_waited_for_more_steps(tmp_path: Path) -> None:
    _, _, output = train(tmp_path, 60, {}, kind=Ahead, **ONLY_SAVED)
    saved = [event["step"] for event in output.events("checkpoint")]
    assert saved == sorted(set(saved))
    assert saved[0] == 22
    assert saved[-1] == 60


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of 150 steps with a profile."""
    path = tmp_path_factory.mktemp("learned")
    return Run(path, *train(path, 150, {}, summaries={"every_steps": 0, "profile_every_steps": 100}))


def test_the_model_learns(learned: Run) -> None:
    assert learned.outcome.metrics["accuracy"] > 0.95
    assert learned.output.events("progress")[-1]["step"] == 150


def test_a_profile_of_one_step_is_recorded(learned: Run) -> None:
    assert len(list(learned.path.glob("logs/train/plugins/profile/*/*.xplane.pb"))) == 1


def test_checkpoints_of_another_model_end_the_run_before_anything_is_written(learned: Run) -> None:
    before = sorted(path.name for path in (learned.path / "checkpoints").iterdir())
    with pytest.raises(CheckpointError, match="of another model"):
        train(learned.path, 200, params={"normalised": True})
    assert sorted(path.name for path in (learned.path / "checkpoints").iterdir()) == before


def finite_checkpoints(run_dir: Path) -> list[int]:
    """Check that the weights of all checkpoints are finite; return their steps."""
    steps = []
    for path in sorted(run_dir.glob("checkpoints/ckpt-*.index")):
        saved = tf.train.load_checkpoint(str(path.with_suffix("")))
        dtypes = saved.get_variable_to_dtype_map()
        names = [name for name, dtype in dtypes.items() if dtype.is_floating]
        assert len(names) >= 4
        assert all(np.isfinite(saved.get_tensor(name)).all() for name in names), path
        steps.append(int(path.stem.removeprefix("ckpt-")))
    return steps


NAN_LOSS = {"bad": 24, "activation": "tanh"}


class NonFiniteGradients(Small):
    """Has a loss that is finite and gradients that are not."""

    def loss(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return super().loss(targets, outputs) + tf.reduce_sum(tf.sqrt(outputs * 0.0))


def test_a_loss_that_is_not_finite_ends_the_run_before_it_is_saved(tmp_path: Path) -> None:
    message = r"the loss of chief is nan or infinite at step 25; lower the learning rate, .* `train.on_nan: warn` trains on"
    with pytest.raises(DivergedError, match=message):
        train(tmp_path, 60, NAN_LOSS, data=Poisoned, steps_per_execution=7, **ONLY_SAVED)
    assert finite_checkpoints(tmp_path) == [10, 20]


class Growth(keras.layers.Layer):
    """Has a weight that grows at each step, and is too large for a float32 in the 23rd; its output does not depend on the weight."""

    def build(self, _: Any) -> None:
        self.grown = self.add_weight(shape=(), initializer="ones", trainable=False, name="grown")

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.grown.assign(self.grown * 50.0)
        return inputs


class Growing(Small):
    """Has a Growth layer first."""

    def model(self) -> keras.Model:
        return keras.Sequential([keras.Input((4,)), Growth(), *super().model().layers])


def test_weights_that_are_not_finite_are_not_saved_even_if_the_loss_is_finite(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"the weights are not finite at step 30, .*grown for one, and are not saved; lower"):
        train(tmp_path, 60, {}, data=Growing, **ONLY_SAVED)
    assert finite_checkpoints(tmp_path) == [10, 20]


class Late(ReplicatedSession):
    """A session whose worker-1 has not yet reported a call when an evaluation reads the weights."""

    def flush(self) -> NonFinite:
        return NonFinite(29, "worker-1")


def test_weights_that_are_not_finite_are_reported_with_the_loss_that_caused_them(tmp_path: Path) -> None:
    config: dict[str, Any] = {"checkpoint": {"every_steps": 1000}, "evaluate": {"every_steps": 30}, "export": {"formats": ["keras"]}}
    with pytest.raises(DivergedError, match="the loss of worker-1 is nan or infinite at step 29; lower"):
        train(tmp_path, 60, {}, kind=Late, data=Growing, **config)


def test_on_nan_warn_continues_training_and_saves_only_finite_weights(tmp_path: Path) -> None:
    _, outcome, output = train(tmp_path, 60, NAN_LOSS, data=Poisoned, on_nan="warn", steps_per_execution=1)
    assert (outcome.step, outcome.finished) == (60, True)
    (notice,) = output.events("notice")
    assert notice["message"].startswith("the loss of chief is nan or infinite at step 25; train.on_nan is warn")
    assert finite_checkpoints(tmp_path) == [10, 20]
    assert output.events("progress")[-1]["loss"] is None
    _, _, resumed = train(tmp_path, 40, {}, on_nan="warn", **ONLY_SAVED)
    assert [event["step"] for event in resumed.events("restored")] == [20]


def test_mixed_float16_skips_steps_until_its_loss_scale_is_used_up(tmp_path: Path) -> None:
    one_nan, config = {**NAN_LOSS, "once": True}, {"precision": "mixed_float16", **ONLY_SAVED}
    session, outcome, _ = train(tmp_path / "once", 60, one_nan, data=Poisoned, **config)
    assert outcome.step == 60
    assert float(session.optimizer.dynamic_scale.numpy()) == 2**14
    with pytest.raises(DivergedError, match="the loss of chief is nan or infinite at step"):
        train(tmp_path / "each", 60, NAN_LOSS, data=Poisoned, **config)
    assert max(finite_checkpoints(tmp_path / "each")) >= 30  # halved 15 times from 2^15
    with pytest.raises(DivergedError, match=r"the loss scale has fallen to .* nothing is learned"):  # only the gradients are not finite
        train(tmp_path / "hidden", 60, {}, data=NonFiniteGradients, **config)
    with pytest.raises(DivergedError, match="the loss of chief is nan or infinite at step 13"):
        train(tmp_path / "accumulated", 60, one_nan, data=Poisoned, gradients={"accumulate": 2}, **config)


class Mask(keras.layers.Layer):
    """Has an untrained weight that is infinite from the start."""

    def build(self, _: Any) -> None:
        self.add_weight(shape=(), initializer=keras.initializers.Constant(np.inf), trainable=False, name="mask")

    def call(self, inputs: Any) -> Any:
        return inputs


class Masked(Small):
    """Has a Mask layer last."""

    def model(self) -> keras.Model:
        return keras.Sequential([keras.Input((4,)), *super().model().layers, Mask()])


def test_an_untrained_weight_may_be_infinite_and_checkpoints_are_written_at_intervals_of_seconds(tmp_path: Path) -> None:
    config = {**ONLY_SAVED, "checkpoint": {"every_seconds": 1e-6}}
    _, outcome, output = train(tmp_path, 40, {}, data=Masked, steps_per_execution=10, **config)
    assert outcome.step == 40
    assert [event["step"] for event in output.events("checkpoint")] == [10, 20, 30, 40]


def test_a_model_that_is_not_finite_is_not_exported(tmp_path: Path) -> None:
    _, outcome, output = train(
        tmp_path, 60, {"bad": 24}, data=Poisoned, on_nan="warn", export={"metric": "accuracy", "mode": "min", "formats": ["keras"]}
    )
    assert outcome.step == 60
    assert [event["step"] for event in output.events("exported")] == [20]
