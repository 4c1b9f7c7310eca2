"""A session of one process; tests/integration/test_strategies.py has sessions of several."""

from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.engine.small import Alike, Small
from tests.trainer.engine.test_loop import settings
from trainer.engine import model_ops
from trainer.engine.checkpoints import Checkpoints
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.replicated import ReplicatedSession
from trainer.workloads.errors import WorkloadError


class Second(AllReduce):
    """The second task of an all-reduce whose first has the same state, as after `broadcast`."""

    def __init__(self) -> None:
        super().__init__()
        self.index = 1

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        self.broadcasts = variables


def test_each_task_drops_different_units(tmp_path: Path) -> None:
    states = []
    second = Second()
    for all_reduce in (AllReduce(), second):
        session = ReplicatedSession(Small({"dropout": True}), settings(tmp_path, 10), all_reduce)
        session.begin_at(0)
        states.append(model_ops.seeds(session.model)[0].numpy())
    assert any(v.dtype == tf.int64 and v.shape.rank for v in second.broadcasts), "the random layers' states are shared too"
    np.testing.assert_array_equal(states[1] - states[0], [1, 0])


class Reading(Alike):
    """Has a step of its own, whose loss is a number that an operation of TensorFlow draws."""

    def customizations(self) -> tuple[str, ...]:
        return ("train_step",)

    def prepare_steps(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        """Do nothing: nothing is learned."""

    def train_step(self, inputs: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
        del inputs, targets
        return {"loss": tf.random.uniform([])}

    def reset(self) -> None:
        """There are no metrics."""

    test_step = train_step


@pytest.mark.parametrize("workload", [Alike({"noise": True}), Reading({})], ids=["the engine's step", "a step of its own"])
def test_operations_of_tensorflow_draw_other_numbers_in_each_task_and_after_a_resume(workload: Alike, tmp_path: Path) -> None:
    def losses(all_reduce: AllReduce, step: int) -> list[float | None]:
        session = ReplicatedSession(workload, settings(tmp_path, 10), all_reduce)
        session.begin_at(step)
        return [session.run(1).loss for _ in range(3)]

    drawn = [loss for all_reduce in (AllReduce, Second) for step in (0, 5) for loss in losses(all_reduce(), step)]
    assert len(set(drawn)) == 12
    assert losses(Second(), 5) == drawn[-3:]


class Unseeded(Reading):
    """Its loss is a number that a function of keras.random draws without a seed."""

    def train_step(self, inputs: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
        del inputs, targets
        return {"loss": keras.random.uniform([])}

    test_step = train_step


@pytest.mark.parametrize("workload", [Alike({"unseeded": True}), Unseeded({})], ids=["the engine's step", "a step of its own"])
def test_keras_draws_other_numbers_without_a_seed_in_each_task_and_continues_after_a_resume(workload: Alike, tmp_path: Path) -> None:
    def losses(all_reduce: AllReduce, steps: list[int], run_dir: Path) -> list[float]:
        session = ReplicatedSession(workload, settings(run_dir, 10), all_reduce)
        saved = Checkpoints(run_dir, session.model, session.optimizer, keep=1)
        restored = saved.restore(pytest.fail)
        session.begin_at(restored.step if restored else 0)
        means = [session.run(count).loss for count in steps]
        saved.save(session.step)
        return [float(mean or 0) for mean in means]

    whole = losses(AllReduce(), [1, 1, 1, 1], tmp_path / "whole")
    assert len({*whole, *losses(Second(), [1, 1, 1, 1], tmp_path / "second")}) == 8
    halves = [*losses(AllReduce(), [1, 1], tmp_path / "halves"), *losses(AllReduce(), [2], tmp_path / "halves")]
    assert halves == [*whole[:2], pytest.approx(np.mean(whole[2:]))]


def test_progress_covers_all_steps_of_a_call(tmp_path: Path) -> None:
    session = ReplicatedSession(Small({}), settings(tmp_path, 10), AllReduce())
    session.begin_at(0)
    progress = session.run(5, next_steps=7)
    assert (progress.step, progress.steps, progress.examples, progress.next_steps) == (5, 5, 80, 7)
    assert progress.metrics.keys() == {"accuracy"}
    assert progress.loss == pytest.approx(0.7, abs=0.3)


def test_tasks_that_cannot_synchronize_a_normalization_refuse_it(tmp_path: Path) -> None:
    two_tasks = AllReduce()
    two_tasks.size = 2
    workload = Small({"normalised": "synchronized"})
    ReplicatedSession(workload, settings(tmp_path, 10), AllReduce())
    with pytest.raises(WorkloadError, match=r"the layer .batch_norm.* has synchronized=True, .*; leave it out, or use strategy mirrored"):
        ReplicatedSession(workload, settings(tmp_path, 10), two_tasks)
