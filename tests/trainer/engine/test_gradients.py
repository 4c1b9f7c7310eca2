"""A loss without a gradient to some weights, or to all: they are named, left as they are, or refused."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.engine.small import Small, small_config
from tests.trainer.engine.test_loop import ONLY_SAVED, train
from trainer.engine import model_ops
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.replica import Replica
from trainer.engine.replicated import ReplicatedSession
from trainer.workloads.errors import WorkloadError
from trainer.workloads.protocol import Shard


class Judged(Small):
    """Its loss is a metric."""

    def loss(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.cast(tf.argmax(outputs, axis=1) != targets, tf.float32))


class Stopped(Small):
    """Its layer `stopped` is trainable, and has no gradient."""

    def model(self) -> keras.Model:
        inputs = keras.Input((4,))
        stopped = keras.layers.Lambda(tf.stop_gradient, output_shape=(4,))(keras.layers.Dense(4, name="stopped")(inputs))
        return keras.Model(inputs, keras.layers.Dense(2)(stopped))


def on_a_worker(workload: Any, **settings: Any) -> Replica:
    """Trace a step of a worker of parameter servers; return its replica."""
    config = small_config(**settings)
    built = model_ops.build(workload, config)
    replica = Replica(workload, built.model, built.optimizer, config)
    values = [tf.identity(v.value) for v in built.model.trainable_variables]

    @tf.function(autograph=False)
    def step(iterator: Any) -> Any:
        return replica.stateless_step(iterator, values, [], tf.constant(0), tf.constant(0))[0]

    step.get_concrete_function(iter(workload.train_data(Shard(config.batch_size, config.seed))))
    return replica


def in_one_process(workload: Any, **settings: Any) -> ReplicatedSession:
    """Take 3 steps; return the session."""
    session = ReplicatedSession(workload, small_config(**settings), AllReduce())
    session.begin_at(0)
    session.run(3)
    return session


@pytest.mark.parametrize("run", [on_a_worker, in_one_process])
@pytest.mark.parametrize(
    "settings", [{}, {"jit_compile": True}, {"gradients": {"accumulate": 2}}], ids=["plain", "compiled", "accumulated"]
)
def test_a_loss_without_any_gradient_is_refused(run: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(
        WorkloadError, match=r"^train.workload small:Small: the loss has no gradient to any .*; compute the loss from the model"
    ):
        run(Judged({}), **settings)


@pytest.mark.parametrize(
    "settings", [{}, {"jit_compile": True}, {"gradients": {"accumulate": 2}}], ids=["plain", "compiled", "accumulated"]
)
@pytest.mark.parametrize(
    "params", [{"optimizer": "AdamW", "arguments": {"weight_decay": 0.5}}, {"optimizer": "Ftrl"}], ids=["weight decay", "ftrl"]
)
def test_weights_without_gradient_stay_as_they_are(params: dict[str, Any], settings: dict[str, Any]) -> None:
    session = in_one_process(Stopped(params), **settings)
    kernel, bias, trained, _ = session.model.trainable_variables
    assert session.without_gradient == (kernel.path, bias.path) == ("stopped/kernel", "stopped/bias")
    initial = model_ops.build(Stopped(params), small_config(**settings)).model.trainable_variables
    np.testing.assert_array_equal(kernel, initial[0])
    assert not np.array_equal(trained, initial[2])


def test_parameter_servers_refuse_an_optimizer_that_would_change_them() -> None:
    assert on_a_worker(Stopped({})).without_gradient == ("stopped/kernel", "stopped/bias")
    for params in ({"optimizer": "AdamW"}, {"optimizer": "Ftrl"}):
        with pytest.raises(
            WorkloadError, match=r"no gradient to stopped/kernel, stopped/bias, .* set `trainable = False` on their layers$"
        ):
            on_a_worker(Stopped(params))


def test_parameter_servers_accept_weight_decay_from_which_they_are_excluded() -> None:
    assert on_a_worker(Stopped({"optimizer": "AdamW", "undecayed": ["kernel", "bias"]})).without_gradient == (
        "stopped/kernel",
        "stopped/bias",
    )


def test_they_are_named_once(tmp_path: Path) -> None:
    _, _, output = train(tmp_path, 3, {}, data=Stopped, steps_per_execution=1, **ONLY_SAVED)
    notices = [event["message"] for event in output.events("notice")]
    assert len([message for message in notices if "no gradient to them: stopped/kernel, stopped/bias; " in message]) == 1
