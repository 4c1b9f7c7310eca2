"""The training state on parameter servers, here on this process's CPU."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.parameter_server import state
from trainer.engine.parameter_server.state import ServerState

STEPS = 3


def trained(kind: Any) -> keras.Model:
    """Return a model whose optimizer has taken STEPS steps, as after `load_model`."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(kind(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)), "mse")
    take(model.optimizer, model)
    return model


def take(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> None:
    for _ in range(STEPS):
        optimizer.apply([tf.ones(v.shape) for v in model.trainable_variables], model.trainable_variables)


# A fused update, one of packed variables, one of each variable by itself.
@pytest.mark.parametrize("kind", [keras.optimizers.Adam, keras.optimizers.AdamW, keras.optimizers.Lamb])
def test_an_optimizer_that_has_taken_steps_before_the_run_continues(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "device", lambda _: "CPU:0")
    model, expected = trained(kind), trained(kind)
    take(expected.optimizer, expected)
    servers = ServerState(model, model.optimizer, 1)
    servers.assign_from_chief(0)
    for _ in range(STEPS):
        (gradients,) = servers.packed([tf.ones(v.shape) for v in model.trainable_variables])
        servers.groups[0].apply(gradients)
    assert int(servers.step.numpy()) == STEPS
    servers.copy_to_chief()
    assert int(model.optimizer.iterations.numpy()) == 2 * STEPS
    for own, other in zip(model.trainable_variables, expected.trainable_variables, strict=True):
        np.testing.assert_allclose(own.numpy(), other.numpy(), rtol=1e-5)


def test_a_checkpoint_of_an_earlier_version_continues_at_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "device", lambda _: "CPU:0")
    model = trained(keras.optimizers.Adam)
    servers = ServerState(model, model.optimizer, 1)
    servers.assign_from_chief(STEPS)  # as restored: the optimizer's count was that of the run
    (gradients,) = servers.packed([tf.ones(v.shape) for v in model.trainable_variables])
    servers.groups[0].apply(gradients)
    assert int(servers.groups[0].optimizer.iterations.numpy()) == STEPS + 1
