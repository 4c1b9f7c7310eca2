"""cifar10: its published numbers, its data as a function of place, that it learns and resumes, and its summaries."""

import shutil
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.engine.test_loop import Output
from tests.trainer.tensorboard_reader import read_events
from trainer.engine import loop, model_ops, moving_averages
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.replicated import ReplicatedSession
from trainer.engine.train_config import TrainConfig, train_config
from trainer.events import Reporter
from trainer.settings import TrainerSettings
from trainer.workloads.averaged_sgd import AveragedSGD
from trainer.workloads.cifar10 import Cifar10
from trainer.workloads.errors import WorkloadError
from trainer.workloads.protocol import Shard

SMALL = {"filters": 16, "learning_rate": 0.05}


@pytest.fixture(scope="module")
def workload() -> Cifar10:
    return Cifar10(params={}, data="synthetic", seed=0)


@pytest.fixture(scope="module")
def model(workload: Cifar10) -> keras.Model:
    return workload.model()


def config_of(run_dir: Path, steps: int, **train: Any) -> TrainConfig:
    base = {"workload": "cifar10", "steps": steps, "batch_size": 32, "params": SMALL, "evaluate": {"every_steps": 0}}
    values = {"run": "cifar10", "run_dir": str(run_dir), "scratch_dir": str(run_dir / "scratch"), "train": {**base, **train}}
    return train_config(TrainerSettings.model_validate(values))


def trained(run_dir: Path, steps: int, **train: Any) -> tuple[ReplicatedSession, loop.TrainingOutcome, Output]:
    config = config_of(run_dir, steps, **train)
    workload = Cifar10(params=SMALL, data="synthetic", seed=0)
    session = ReplicatedSession(workload, config, AllReduce())
    output = Output()
    return session, loop.run(session, workload, config, Reporter("chief", output), lambda: False), output


def test_the_network_has_the_published_shapes_and_start_values(model: keras.Model) -> None:
    shapes = [(5, 5, 3, 64), (64,), (5, 5, 64, 64), (64,), (2304, 384), (384,), (384, 192), (192,), (192, 10), (10,)]
    assert [tuple(variable.shape) for variable in model.trainable_variables] == shapes
    kernels = [keras.ops.convert_to_numpy(variable) for variable in model.trainable_variables[::2]]
    for values, stddev in zip(kernels, (0.05, 0.05, 0.04, 0.04, 1 / 192), strict=True):
        # A normal distribution cut at two standard deviations has 0.88 of its standard deviation.
        assert abs(values).max() <= 2 * stddev
        assert values.std() == pytest.approx(0.88 * stddev, rel=0.05)
    for variable, bias in zip(model.trainable_variables[1::2], (0, 0.1, 0.1, 0.1, 0), strict=True):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), bias)
    assert model.output_shape == (None, 10)


def test_weight_decay_applies_only_to_the_dense_layers(model: keras.Model) -> None:
    model(tf.zeros([1, 24, 24, 3]))
    dense = [model.get_layer(name).kernel for name in ("local3", "local4")]
    expected = sum(0.004 * float(tf.nn.l2_loss(kernel.value)) for kernel in dense)
    assert len(model.losses) == 2
    assert float(tf.add_n(model.losses)) == pytest.approx(expected, rel=1e-5)


def test_it_computes_the_same_as_the_published_layers(model: keras.Model) -> None:
    k1, b1, k2, b2, w3, b3, w4, b4, w5, b5 = (variable.value for variable in model.trainable_variables)
    images = tf.random.stateless_normal([3, 24, 24, 3], seed=[1, 2])

    def normalized(values: tf.Tensor) -> tf.Tensor:
        return tf.nn.lrn(values, 4, bias=1.0, alpha=0.001 / 9, beta=0.75)

    def pooled(values: tf.Tensor) -> tf.Tensor:
        return tf.nn.max_pool2d(values, 3, 2, "SAME")

    values = normalized(pooled(tf.nn.relu(tf.nn.conv2d(images, k1, 1, "SAME") + b1)))
    values = pooled(normalized(tf.nn.relu(tf.nn.conv2d(values, k2, 1, "SAME") + b2)))
    values = tf.nn.relu(tf.reshape(values, [3, -1]) @ w3 + b3)
    values = tf.nn.relu(values @ w4 + b4) @ w5 + b5
    np.testing.assert_allclose(model(images), values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("examples,steps", [(128, 350 * 10_000 // 128), (512, 350 * 10_000 // 512)])
def test_the_learning_rate_falls_to_a_tenth_every_350_epochs(workload: Cifar10, examples: int, steps: int) -> None:
    optimizer = workload.optimizer_for(examples)
    assert isinstance(optimizer, AveragedSGD)
    assert optimizer.ema_momentum == 0.9999
    optimizer.build([keras.Variable(0.0)])
    for step, rate in ((0, 0.1), (steps - 1, 0.1), (steps, 0.01), (2 * steps, 0.001)):
        optimizer.iterations.assign(step)
        assert float(optimizer.learning_rate) == pytest.approx(rate, rel=1e-4)


def test_wrong_parameters_are_named() -> None:
    with pytest.raises(WorkloadError, match=r"train\.params\.filters.*found 0.*the parameters are learning_rate, moving_average, filters"):
        Cifar10(params={"filters": 0}, data="synthetic", seed=0)


def read_batches(workload: Cifar10, shard: Shard, batches: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = zip(*islice(workload.train_data(shard), batches), strict=True)
    return np.stack(images), np.stack(labels)


def test_batches_fit_the_model(workload: Cifar10, model: keras.Model) -> None:
    images, labels = next(iter(workload.train_data(Shard(128, seed=0))))
    assert (images.shape, images.dtype.name, labels.shape) == ((128, 24, 24, 3), "float32", (128,))
    outputs = model(images, training=True)
    # Untrained, ten classes: the loss is near ln 10; with the weight decay 4.7, as published.
    assert float(workload.loss(labels, outputs)) == pytest.approx(np.log(10), abs=0.1)
    assert float(workload.loss(labels, outputs) + tf.add_n(model.losses)) == pytest.approx(4.68, abs=0.1)


def test_a_stream_started_later_continues_exactly_distortions_included(workload: Cifar10) -> None:
    whole = read_batches(workload, Shard(16, seed=3, index=1, count=2), 34)

    @tf.function(autograph=False)
    def data(start: tf.Tensor) -> tf.data.Dataset:
        return workload.train_data(Shard(16, seed=3, index=1, count=2, start=start))

    for start in (1, 7, 30):
        resumed = zip(*data(tf.constant(start)).take(4), strict=True)
        for expected, actual in zip(whole, resumed, strict=True):
            np.testing.assert_array_equal(actual, expected[start : start + 4])


def test_two_readers_together_see_the_batches_of_one_reader(workload: Cifar10) -> None:
    whole, _ = read_batches(workload, Shard(16, seed=3), 3)
    halves = [read_batches(workload, Shard(8, seed=3, index=index, count=2), 3)[0] for index in (0, 1)]
    np.testing.assert_array_equal(np.concatenate(halves, axis=1), whole)


def test_a_picture_is_distorted_again_each_epoch(workload: Cifar10) -> None:
    size = len(workload.eval_data(1))  # the test set is a fifth of the training set
    first, _ = read_batches(workload, Shard(5 * size, seed=3), 1)
    second, _ = read_batches(workload, Shard(5 * size, seed=3, start=1), 1)
    assert len(np.unique(np.concatenate([first[0], second[0]])[:, 0, 0, 0])) > 15 * size / 2


def test_it_learns_in_600_small_steps_resumes_exactly_and_evaluates_the_averages(tmp_path: Path) -> None:
    options = {"checkpoint": {"every_steps": 500}, "summaries": {"every_steps": 0}}
    straight, whole, output = trained(tmp_path / "straight", 600, **options)
    assert whole.metrics["accuracy"] >= 0.9
    # By default every tenth step is reported.
    assert [event["step"] for event in output.events("progress")][-60:] == list(range(10, 601, 10))
    resumed, outcome, output = trained(copy_at_step(500, tmp_path / "straight", tmp_path / "resumed"), 600, **options)
    assert output.events("restored")[0]["step"] == 500
    for expected, actual in zip(_state(straight), _state(resumed), strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert outcome.metrics == whole.metrics
    with moving_averages.swapped_in(straight.model, straight.optimizer):
        assert model_ops.evaluation(Cifar10(SMALL, "synthetic", 0), straight.model, 500)() == pytest.approx(whole.metrics)


def copy_at_step(step: int, run_dir: Path, copy: Path) -> Path:
    """Copy the state of a run directory at the checkpoint of a step; return the copy."""
    (copy / "checkpoints").mkdir(parents=True)
    for file in (run_dir / "checkpoints").glob(f"ckpt-{step}.*"):
        shutil.copy2(file, copy / "checkpoints")
    return copy


def _state(session: ReplicatedSession) -> Sequence[np.ndarray]:
    return [np.asarray(variable.value) for variable in (*session.model.variables, *session.optimizer.variables)]


class Linear(Cifar10):
    """The same pictures with no hidden layer."""

    def model(self) -> keras.Model:
        return keras.Sequential([keras.Input((24, 24, 3)), keras.layers.Flatten(), keras.layers.Dense(10)])

    def optimizer_for(self, examples_per_step: int) -> keras.optimizers.Optimizer:
        del examples_per_step
        return keras.optimizers.Adam(0.001)


def test_a_linear_classifier_does_not_learn(tmp_path: Path) -> None:
    linear = Linear(params={}, data="synthetic", seed=0)
    session = ReplicatedSession(linear, config_of(tmp_path, 600), AllReduce())
    session.begin_at(0)
    session.run(600)
    assert model_ops.evaluation(linear, session.model, 500)()["accuracy"] < 0.35


def test_summaries_show_layers_variables_and_inputs(workload: Cifar10, model: keras.Model, tmp_path: Path) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path))
    with writer.as_default(step=100):
        workload.write_summaries(model, 100)
    writer.close()
    events = read_events(tmp_path)
    layers = ("pool1_relu", "conv2", "local3", "local4", "logits")
    variables = [f"{layer}/{part}" for layer in ("conv1", "conv2", "local3", "local4", "logits") for part in ("kernel", "bias")]
    for name in (*(f"{layer}/sparsity" for layer in layers), *(f"{name}/mean" for name in variables)):
        assert [step for step, _ in events.scalars(name)] == [100]
    assert 0.05 < dict(events.scalars("local3/sparsity"))[100] < 0.95
    for name in (*(f"{layer}/activations" for layer in layers), *variables):
        assert name in events.tags("histograms")
    assert "inputs" in events.tags("images")
