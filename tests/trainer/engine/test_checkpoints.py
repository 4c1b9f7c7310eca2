"""Checkpoints are complete, limited in number, and never replaced by those of another model."""

import functools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.engine.small import Small, small_config
from trainer.engine import model_ops, schedules
from trainer.engine.checkpoints import CheckpointError, Checkpoints


def built(train: dict[str, Any] | None = None, **params: object) -> model_ops.BuiltModel:
    return model_ops.build(Small(params), small_config(1, **(train or {})))


@functools.cache
def any_state() -> model_ops.BuiltModel:
    """Return the same model and optimizer each time, for tests that do not look at their variables."""
    return built()


def checkpoints(directory: Path, state: model_ops.BuiltModel, keep: int = 3) -> Checkpoints:
    return Checkpoints(directory, state.model, state.optimizer, keep)


def test_saved_state_is_restored(tmp_path: Path) -> None:
    first = built()
    first.model.trainable_variables[0].assign(np.full((4, 8), 7.0))
    first.optimizer.iterations.assign(42)
    checkpoints(tmp_path, first).save(40)
    second = built()
    restored = checkpoints(tmp_path, second).restore(pytest.fail)
    assert restored is not None
    assert restored.step == 40
    np.testing.assert_array_equal(second.model.trainable_variables[0].numpy(), np.full((4, 8), 7.0))
    assert int(second.optimizer.iterations.numpy()) == 42


def test_a_checkpoint_of_an_earlier_version_without_the_global_seed_is_restored(tmp_path: Path) -> None:
    model, optimizer = Small({}).model(), Small({}).optimizer()
    optimizer.build(model.trainable_variables)
    Checkpoints(tmp_path, model, optimizer, keep=1).save(40)
    restored = checkpoints(tmp_path, built()).restore(pytest.fail)
    assert restored is not None
    assert restored.step == 40


def rate(value: float) -> dict[str, Any]:
    return {"arguments": {"learning_rate": value}}


SCHEDULE = {"learning_rate": {"initial": 0.5, "schedule": "exponential", "decay_steps": 10}}


def test_a_lowered_rate_is_restored_if_the_configured_rate_is_the_same(tmp_path: Path) -> None:
    first = built(**rate(0.001))
    saved = checkpoints(tmp_path, first)
    first.optimizer.learning_rate = 0.00025  # as ReduceLROnPlateau does
    saved.save(50)
    for step in (50, 60):  # the second resume is from a checkpoint of a resumed run
        state = built(**rate(0.001))
        resumed = checkpoints(tmp_path, state)
        resumed.restore(pytest.fail)
        assert float(state.optimizer.learning_rate.numpy()) == pytest.approx(0.00025)
        resumed.save(step)


def test_a_changed_rate_replaces_that_of_the_checkpoint(tmp_path: Path) -> None:
    first = built(**rate(0.001))
    saved = checkpoints(tmp_path, first)
    first.optimizer.learning_rate = 0.00025
    first.optimizer.iterations.assign(50)
    saved.save(50)
    notices: list[str] = []
    second = built(**rate(1e-12))
    resumed = checkpoints(tmp_path, second)
    resumed.restore(notices.append)
    assert notices == ["learning rate 0.001 -> 1e-12 from step 50"]
    assert float(second.optimizer.learning_rate.numpy()) == pytest.approx(1e-12)
    assert int(second.optimizer.iterations.numpy()) == 50
    resumed.save(60)
    checkpoints(tmp_path, built(**rate(1e-12))).restore(pytest.fail)


def test_a_changed_rate_is_used_with_the_checkpoint_of_a_version_that_stored_no_rate(tmp_path: Path) -> None:
    saved = checkpoints(tmp_path, built(**rate(0.001)))
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(**saved._tracked_objects), str(tmp_path), 3, checkpoint_name="ckpt")
    saved._step.assign(50)
    manager.save(checkpoint_number=50)
    notices: list[str] = []
    for value in (0.001, 0.0002):
        second = built(**rate(value))
        checkpoints(tmp_path, second).restore(notices.append)
        assert float(second.optimizer.learning_rate.numpy()) == pytest.approx(value)
    assert notices == ["learning rate 0.001 -> 0.0002 from step 50"]


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
@pytest.mark.parametrize(
    "before, after, message, resumes_with",
    [
        ({}, SCHEDULE, "0.05 -> exponential(decay_steps=10, initial=0.5)", 0.5 * 0.1**5),
        (SCHEDULE, {}, "exponential(decay_steps=10, initial=0.5) -> 0.05", 0.05),
        (SCHEDULE, {"learning_rate": {**SCHEDULE["learning_rate"], "initial": 0.4}}, None, 0.4 * 0.1**5),
    ],
    ids=["to a schedule", "to a constant", "to another schedule"],
)
def test_a_rate_may_become_a_schedule_and_the_reverse(
    precision: str, before: dict[str, Any], after: dict[str, Any], message: str | None, resumes_with: float, tmp_path: Path
) -> None:
    first = built({"precision": precision, **before})
    inner = getattr(first.optimizer, "inner_optimizer", first.optimizer)
    for index, slot in enumerate(inner._momentums):
        slot.assign(np.full(slot.shape, index))
    inner.iterations.assign(50)
    checkpoints(tmp_path, first).save(50)
    second, notices = built({"precision": precision, **after}), list[str]()
    checkpoints(tmp_path, second).restore(notices.append)
    message = message or "exponential(decay_steps=10, initial=0.5) -> exponential(decay_steps=10, initial=0.4)"
    assert notices == [f"learning rate {message} from step 50"]
    inner = getattr(second.optimizer, "inner_optimizer", second.optimizer)
    assert int(inner.iterations.numpy()) == 50
    assert [float(slot.numpy().flat[0]) for slot in inner._momentums] == [0.0, 1.0, 2.0, 3.0]
    assert float(second.optimizer.learning_rate) == pytest.approx(resumes_with)


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    saved = checkpoints(tmp_path, any_state(), keep=2)
    for step in (10, 20, 30, 40):
        saved.save(step)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["ckpt-30.index", "ckpt-40.index"]
    second = checkpoints(tmp_path, any_state(), keep=2)
    second.save(50)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["ckpt-40.index", "ckpt-50.index"]


def test_nothing_is_restored_without_a_checkpoint(tmp_path: Path) -> None:
    assert checkpoints(tmp_path, any_state()).restore(pytest.fail) is None


@pytest.mark.parametrize("damage", ["index", "data"])
def test_a_damaged_checkpoint_is_reported_and_the_previous_one_restored(tmp_path: Path, damage: str) -> None:
    saved = checkpoints(tmp_path, any_state())
    saved.save(10)
    saved.save(20)
    damaged = next(tmp_path.glob(f"ckpt-20.{damage}*"))
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    notices: list[str] = []
    restored = checkpoints(tmp_path, any_state()).restore(notices.append)
    assert restored is not None
    assert restored.step == 10
    [notice] = notices
    assert "ckpt-20" in notice
    assert damaged.exists()


def test_a_checkpoint_of_another_model_is_an_error_and_is_not_deleted(tmp_path: Path) -> None:
    checkpoints(tmp_path, any_state()).save(10)
    with pytest.raises(CheckpointError, match=r"ckpt-10 is of another model or optimizer.*another name"):
        checkpoints(tmp_path, built(normalised=True)).restore(pytest.fail)
    assert (tmp_path / "ckpt-10.index").exists()


class Unfit(tf.__internal__.tracking.Trackable):
    """A part of a model that takes no value, and does not say why."""

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {"value": tf.zeros([])}

    def _restore_from_tensors(self, _: Any) -> None:
        raise AssertionError


def test_an_error_without_a_message_is_named_too(tmp_path: Path) -> None:
    state = model_ops.build(Small({}), small_config(1))
    state.model.unfit = Unfit()
    checkpoints(tmp_path, state).save(10)
    with pytest.raises(CheckpointError, match=r"of another model or optimizer \(AssertionError\(\)\)"):
        checkpoints(tmp_path, state).restore(pytest.fail)


def test_training_does_not_start_if_no_checkpoint_can_be_read(tmp_path: Path) -> None:
    checkpoints(tmp_path, any_state()).save(10)
    next(tmp_path.glob("ckpt-10.index")).write_bytes(b"")
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints can be read"):
        checkpoints(tmp_path, any_state()).restore(lambda _: None)


@pytest.mark.parametrize("damage", ["missing", "empty"])
def test_checkpoints_are_found_without_the_file_that_lists_them(tmp_path: Path, damage: str) -> None:
    saved = checkpoints(tmp_path, any_state())
    for step in (90, 100):
        saved.save(step)
    (tmp_path / "checkpoint").unlink()
    if damage == "empty":
        (tmp_path / "checkpoint").touch()
    notices: list[str] = []
    second = checkpoints(tmp_path, any_state(), keep=2)
    restored = second.restore(notices.append)
    assert restored is not None
    assert restored.step == 100
    assert "missing or damaged" in notices[0]
    second.save(110)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["ckpt-100.index", "ckpt-110.index"]


def test_nothing_is_restored_if_there_is_only_an_empty_list_of_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").touch()
    assert checkpoints(tmp_path, any_state()).restore(pytest.fail) is None


class Compiled(Small):
    """Compiles its model, as users do, so that the model has the optimizer, too."""

    def model(self) -> keras.Model:
        self.compiled = super().model()
        self.compiled.compile(super().optimizer(), "mse")
        return self.compiled

    def optimizer(self) -> keras.optimizers.Optimizer:
        return self.compiled.optimizer


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory with checkpoints of a compiled model, of step 50 with a constant rate and of step 60 with a schedule."""
    directory = tmp_path_factory.mktemp("compiled")
    for params, step in (({}, 50), ({"schedule": True}, 60)):
        state = model_ops.build(Compiled(params), small_config(1))
        state.optimizer.iterations.assign(step)
        checkpoints(directory / str(step), state).save(step)
    return directory


@pytest.mark.parametrize("change", [SCHEDULE, {"gradients": {"clip_norm": 1.0}}, {"learning_rate": {"initial": 0.01}}])
def test_a_compiled_model_resumes_with_another_rate_or_with_clipping(change: dict[str, Any], compiled: Path) -> None:
    for params, step in (({}, 50), ({"schedule": True}, 60)):
        state = model_ops.build(Compiled(params), small_config(1, **({"learning_rate": {"initial": 0.01}} | change)))
        checkpoints(compiled / str(step), state).restore(lambda _: None)
        assert int(state.optimizer.iterations.numpy()) == step


class Closed(keras.optimizers.SGD):
    """Cannot be created again from its configuration."""

    def __init__(self, rate: Any) -> None:
        super().__init__(rate)


def test_an_optimizer_that_cannot_be_created_again_is_an_error_before_anything_is_lost(tmp_path: Path) -> None:
    class Owned(Small):
        def optimizer(self) -> keras.optimizers.Optimizer:
            decay = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
            return Closed(decay if self._params else 0.1)

    checkpoints(tmp_path, model_ops.build(Owned({}), small_config(1))).save(10)
    with pytest.raises(CheckpointError, match="with a constant learning rate before, and Closed cannot be recreated"):
        checkpoints(tmp_path, model_ops.build(Owned({"schedule": True}), small_config(1))).restore(pytest.fail)


def test_schedules_within_a_schedule_are_described_by_their_values() -> None:
    class Warm(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            return step

        def get_config(self) -> dict[str, Any]:
            return {"then": keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)}

    description = schedules.described(keras.optimizers.SGD(Warm()))
    assert description == "Warm(then=ExponentialDecay(decay_rate=0.5, decay_steps=10, initial_learning_rate=0.1, staircase=False))"
