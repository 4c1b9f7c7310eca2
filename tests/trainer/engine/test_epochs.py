"""Epochs become steps if the number of examples is known."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.engine.small import Small
from trainer.engine.epochs import EpochLength, with_steps
from trainer.engine.train_config import TrainConfig, train_config
from trainer.settings import TrainerSettings
from trainer.workloads.errors import WorkloadError
from trainer.workloads.loading import load_workload
from trainer.workloads.user_call import CallArguments
from trainer.workloads.user_data import UserData


def config_of(**train: Any) -> TrainConfig:
    base = {"run": "r", "run_dir": "unused", "scratch_dir": "unused"}
    return train_config(TrainerSettings.model_validate({**base, "train": {"workload": "linear_regression", **train}}))


class Sized(Small):
    """Knows its number of examples."""

    def train_examples(self) -> int:
        return 400


@pytest.mark.parametrize(
    "epochs, batch_size, accumulate, replicas, steps",
    [(1, 16, 1, 1, 25), (3, 16, 1, 1, 75), (3, 16, 1, 2, 38), (3, 16, 2, 2, 19), (1, 1000, 1, 1, 1), (5, 7, 1, 3, 96)],
)
def test_epochs_are_as_many_steps_as_all_replicas_need(epochs: int, batch_size: int, accumulate: int, replicas: int, steps: int) -> None:
    unsized = config_of(epochs=epochs, batch_size=batch_size, gradients={"accumulate": accumulate})
    assert unsized.steps == 0
    sized = with_steps(unsized, Sized({}), replicas)
    assert sized.steps == steps == int(np.ceil(epochs * 400 / (batch_size * accumulate * replicas)))
    assert sized.epoch_length == EpochLength(400, batch_size * accumulate * replicas)


def test_configured_steps_are_not_changed() -> None:
    assert with_steps(config_of(steps=7), Sized({}), 2).steps == 7


@pytest.mark.parametrize("name, examples", [("linear_regression", 100), ("mnist_mlp", 20_000), ("mnist", 20_000)])
def test_built_in_workloads_know_their_number_of_examples(name: str, examples: int) -> None:
    unsized = config_of(workload=name, epochs=2, batch_size=10)
    assert with_steps(unsized, load_workload(unsized.train), 1).steps == 2 * examples // 10


def test_epochs_are_refused_for_a_workload_with_an_unknown_number_of_examples() -> None:
    with pytest.raises(WorkloadError, match=r"train\.epochs is 3, and how many examples linear_regression .*; .* train\.steps"):
        with_steps(config_of(epochs=3), Small({}), 1)


def pairs(count: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(count).map(lambda n: (n, n))


@pytest.mark.parametrize(
    "data, count",
    [
        (lambda: (np.zeros([70, 2]), np.zeros(70)), 70),
        (lambda: ({"a": np.zeros([70, 2])}, np.zeros(70), np.ones(70)), 70),
        (lambda: pairs(50), 50),
        (lambda: pairs(50).shuffle(50).batch(8).repeat().prefetch(1), 50),
        (lambda: pairs(50).repeat(3).shuffle(50).batch(8), 150),
        (lambda: pairs(50).batch(8).repeat(3).prefetch(1), 150),
        (lambda: pairs(50).filter(lambda n, _: n > 3), None),
        (lambda: pairs(50).filter(lambda n, _: n > 3).apply(tf.data.experimental.assert_cardinality(46)), 46),
    ],
    ids=["arrays", "named arrays", "dataset", "batches", "repeated", "repeated batches", "unknown", "asserted"],
)
def test_the_examples_of_a_users_data_are_counted(data: Callable[[], Any], count: int | None) -> None:
    assert UserData(data, CallArguments("x:model", {}, "synthetic", 0), "train_data").count() == count
