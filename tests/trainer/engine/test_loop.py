"""The loop on real sessions in this process: resume is exact, files are written when they are due."""

import io
import json
from collections.abc import Callable
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
from trainer.engine.job import Job, job
from trainer.engine.replicated import LocalSession
from trainer.engine.session import DivergedError, NotFinite, Progress
from trainer.events import Reporter
from trainer.settings import TrainerSettings


class Output(io.StringIO):
    """Collects the events that a reporter writes."""

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in map(json.loads, self.getvalue().splitlines()) if event["event"] == kind]


def settings(run_dir: Path, steps: int, *, has_evaluator: bool = False, **train: Any) -> Job:
    base = {
        "workload": "small:Small",
        "steps": steps,
        "batch_size": 16,
        "checkpoint": {"every_steps": 10, "keep": 2},
        "evaluate": {"every_steps": 20, "batch_size": 100},
        "summaries": {"every_steps": 10, "profile_every_steps": 0},
        "export": {"formats": []},
    }
    return job(
        TrainerSettings.model_validate(
            {
                "run": "small",
                "run_dir": str(run_dir),
                "scratch_dir": str(run_dir / "scratch"),
                "has_evaluator": has_evaluator,
                "train": {**base, **train},
            }
        )
    )


def train(
    run_dir: Path,
    steps: int,
    params: dict[str, Any] | None = None,
    stop_after: int | None = None,
    kind: type[LocalSession] = LocalSession,
    data: Callable[[dict[str, Any]], Any] = Small,
    **changes: Any,
) -> tuple[Any, Any, Output]:
    """Train in this process; returns session, outcome and what was reported."""
    workload = data({"dropout": True, "normalised": True} if params is None else params)
    chosen = settings(run_dir, steps, **changes)
    session = kind(workload, chosen, AllReduce())
    output = Output()
    stopped = (lambda: session.step >= stop_after) if stop_after else (lambda: False)
    outcome = loop.run(session, workload, chosen, Reporter("chief", output), stopped)
    return session, outcome, output


def state(session: Any) -> list[np.ndarray]:
    return [np.asarray(v.value) for v in (*session.model.variables, *session.optimizer.variables)]


def test_a_resumed_run_ends_with_the_very_weights_of_an_uninterrupted_one_whatever_the_steps_of_a_call(tmp_path: Path) -> None:
    straight, _, _ = train(tmp_path / "straight", 60, steps_per_execution=7)
    _, first, _ = train(tmp_path / "halves", 30, steps_per_execution=1)
    resumed, second, output = train(tmp_path / "halves", 60)
    assert (first.step, second.step) == (30, 60)
    assert [event["step"] for event in output.events("restored")] == [30]
    for whole, half in zip(state(straight), state(resumed), strict=True):
        np.testing.assert_array_equal(whole, half)


def test_checkpoints_evaluations_and_progress_come_when_they_are_due(tmp_path: Path) -> None:
    _, outcome, output = train(tmp_path, 45, report_every_steps=10)
    assert [event["step"] for event in output.events("checkpoint")] == [10, 20, 30, 40, 45]
    assert [event["step"] for event in output.events("evaluated")] == [20, 40, 45]
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("*.index")) == ["ckpt-40.index", "ckpt-45.index"]
    kept = run_state.read(tmp_path)
    assert (kept["state"], kept["step"], kept["steps"]) == ("succeeded", 45, 45)
    assert kept["metrics"] == pytest.approx(outcome.metrics)
    assert list(tmp_path.glob("logs/train/events*"))
    assert list(tmp_path.glob("logs/eval/events*"))
    told = output.events("progress")
    assert [event["step"] for event in told if event["step"] > 1] == [10, 20, 30, 40, 45]
    for event in told:
        assert event["loss"] > 0
        assert event["seconds_per_step"] * event["examples_per_second"] == pytest.approx(16)


class Ahead(LocalSession):
    """As sessions with servers are: `flush` waits for steps that are under way, and the next `run` tells of them."""

    _under_way = 0
    _flushed: Progress | None = None

    def flush(self) -> None:
        if self._under_way:
            self._flushed = super().run(self._under_way)
            self._under_way = 0

    def run(self, steps: int, *, stop: bool = False, finish: bool = False, next_steps: int = 0) -> Progress:
        flushed, self._flushed = self._flushed, None
        if flushed is not None:
            return flushed
        self._under_way = min(12, 60 - self.step - steps)
        return super().run(steps, stop=stop, finish=finish, next_steps=next_steps)


def test_no_step_is_saved_twice_where_a_save_waited_for_more_steps(tmp_path: Path) -> None:
    _, _, output = train(tmp_path, 60, kind=Ahead)
    saved = [event["step"] for event in output.events("checkpoint")]
    assert saved == sorted(set(saved))
    assert saved[0] == 22
    assert saved[-1] == 60


def test_the_model_learns(tmp_path: Path) -> None:
    _, outcome, output = train(tmp_path, 150, params={})
    assert outcome.metrics["accuracy"] > 0.95
    assert output.events("progress")[-1]["step"] == 150


def test_a_stop_saves_first_and_the_run_goes_on_from_there(tmp_path: Path) -> None:
    _, outcome, output = train(tmp_path, 100, stop_after=33, steps_per_execution=1)
    assert not outcome.finished
    assert outcome.step == 34
    assert output.events("checkpoint")[-1]["step"] == 34
    assert run_state.read(tmp_path)["state"] == "stopped"
    _, resumed, output = train(tmp_path, 100)
    assert output.events("restored")[0]["step"] == 34
    assert resumed.step == 100


def test_timed_checkpoints(tmp_path: Path) -> None:
    _, _, output = train(tmp_path, 40, steps_per_execution=10, checkpoint={"every_seconds": 1e-6})
    assert [event["step"] for event in output.events("checkpoint")] == [10, 20, 30, 40]


def test_a_complete_run_trains_no_more(tmp_path: Path) -> None:
    first, _, _ = train(tmp_path, 20)
    second, outcome, output = train(tmp_path, 20)
    assert outcome.step == 20
    assert output.events("progress") == []
    for mine, theirs in zip(state(first), state(second), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_profile_of_one_step_is_recorded(tmp_path: Path) -> None:
    train(tmp_path, 25, summaries={"every_steps": 0, "profile_every_steps": 20})
    assert len(list(tmp_path.glob("logs/train/plugins/profile/*/*.xplane.pb"))) == 1


def test_another_models_checkpoints_end_the_run_before_anything_is_written(tmp_path: Path) -> None:
    train(tmp_path, 20, params={})
    before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    with pytest.raises(CheckpointError, match="of another model"):
        train(tmp_path, 40, params={"normalised": True})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == before


def finite_checkpoints(run_dir: Path) -> list[int]:
    """Return the steps of the checkpoints, after a look whether their weights are finite."""
    steps = []
    for path in sorted(run_dir.glob("checkpoints/ckpt-*.index")):
        saved = tf.train.load_checkpoint(str(path.with_suffix("")))
        kinds = saved.get_variable_to_dtype_map()
        names = [name for name, kind in kinds.items() if kind.is_floating]
        assert len(names) >= 4
        assert all(np.isfinite(saved.get_tensor(name)).all() for name in names), path
        steps.append(int(path.stem.removeprefix("ckpt-")))
    return steps


BAD = {"bad": 24, "activation": "tanh"}


class Rooted(Small):
    """Has a loss that is finite and gradients that are not."""

    def loss(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return super().loss(targets, outputs) + tf.reduce_sum(tf.sqrt(outputs * 0.0))


@pytest.mark.parametrize("together", [1, 7])
def test_a_loss_that_is_not_finite_ends_the_run_before_it_is_saved(together: int, tmp_path: Path) -> None:
    told = r"the loss of chief is nan or infinite at step 25; lower the learning rate, .* `train.on_nan: warn` trains on"
    with pytest.raises(DivergedError, match=told):
        train(tmp_path, 60, BAD, data=Poisoned, steps_per_execution=together)
    assert finite_checkpoints(tmp_path) == [10, 20]


class Growth(keras.layers.Layer):
    """Has a weight that grows with each step, beyond what a float32 can be in the 23rd, and that its output does not depend on."""

    def build(self, _: Any) -> None:
        self.grown = self.add_weight(shape=(), initializer="ones", trainable=False, name="grown")

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.grown.assign(self.grown * 50.0)
        return inputs


class Growing(Small):
    """Has such a layer first."""

    def model(self) -> keras.Model:
        return keras.Sequential([keras.Input((4,)), Growth(), *super().model().layers])


def test_weights_that_are_not_finite_are_not_saved_though_the_loss_is(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"the weights are not finite at step 30, .*grown for one, and are not saved; lower"):
        train(tmp_path, 60, {}, data=Growing)
    assert finite_checkpoints(tmp_path) == [10, 20]


class Late(LocalSession):
    """A worker has a call that it has not reported when an evaluation sees the weights."""

    def flush(self) -> NotFinite:
        return NotFinite(29, "worker-1")


def test_weights_that_are_not_finite_are_laid_to_the_loss_that_made_them_so(tmp_path: Path) -> None:
    seldom: dict[str, Any] = {"checkpoint": {"every_steps": 1000}, "evaluate": {"every_steps": 30}, "export": {"formats": ["keras"]}}
    with pytest.raises(DivergedError, match="the loss of worker-1 is nan or infinite at step 29; lower"):
        train(tmp_path, 60, {}, kind=Late, data=Growing, **seldom)


def test_with_on_nan_warn_training_goes_on_and_what_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    _, outcome, output = train(tmp_path, 60, BAD, data=Poisoned, on_nan="warn")
    assert (outcome.step, outcome.finished) == (60, True)
    (notice,) = output.events("notice")
    assert notice["message"].startswith("the loss of chief is nan or infinite at step 25; train.on_nan is warn")
    assert finite_checkpoints(tmp_path) == [10, 20]
    assert output.events("progress")[-1]["loss"] is None
    _, _, resumed = train(tmp_path, 40, {}, on_nan="warn")
    assert [event["step"] for event in resumed.events("restored")] == [20]


def test_mixed_float16_leaves_out_a_step_until_its_loss_scale_is_used_up(tmp_path: Path) -> None:
    once, half = {**BAD, "once": True}, "mixed_float16"
    session, outcome, _ = train(tmp_path / "once", 60, once, data=Poisoned, precision=half)
    assert outcome.step == 60
    assert float(session.optimizer.dynamic_scale.numpy()) == 2**14
    with pytest.raises(DivergedError, match="the loss of chief is nan or infinite at step"):
        train(tmp_path / "on", 60, BAD, data=Poisoned, precision=half)
    assert max(finite_checkpoints(tmp_path / "on")) >= 30  # halved 15 times from 2^15
    with pytest.raises(DivergedError, match=r"the loss scale has fallen to .* nothing is learned"):  # the gradients alone are not finite
        train(tmp_path / "hidden", 60, {}, data=Rooted, precision=half)
    with pytest.raises(DivergedError, match="the loss of chief is nan or infinite at step 13"):
        train(tmp_path / "accumulated", 60, once, data=Poisoned, gradients={"accumulate": 2}, precision=half)


class Mask(keras.layers.Layer):
    """Has a weight that is infinite from the start, and is not trained."""

    def build(self, _: Any) -> None:
        self.add_weight(shape=(), initializer=keras.initializers.Constant(np.inf), trainable=False, name="mask")

    def call(self, inputs: Any) -> Any:
        return inputs


class Masked(Small):
    """Has such a layer last."""

    def model(self) -> keras.Model:
        return keras.Sequential([keras.Input((4,)), *super().model().layers, Mask()])


def test_a_weight_that_is_infinite_by_design_is_no_fault(tmp_path: Path) -> None:
    _, outcome, _ = train(tmp_path, 20, {}, data=Masked)
    assert outcome.step == 20


def test_a_model_that_is_not_finite_is_not_exported(tmp_path: Path) -> None:
    _, outcome, output = train(tmp_path, 60, {"bad": 24}, data=Poisoned, on_nan="warn", export={"metric": "accuracy", "formats": ["keras"]})
    assert outcome.step == 60
    assert [event["step"] for event in output.events("exported")] == [20]
