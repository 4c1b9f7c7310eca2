"""Effects of the train settings: learning rates, gradients, precision; each checked on a real session."""

import functools
import math
import time
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.engine.small import Small, small_config
from trainer.engine import model_ops, optimizer_setup
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.optimizer_copy import copied
from trainer.engine.parameter_server import packing
from trainer.engine.replicated import ReplicatedSession
from trainer.settings import LearningRate
from trainer.workloads.errors import WorkloadError

STEPS = 40


def trained(params: dict[str, Any] | None = None, steps: int = STEPS, **train: Any) -> ReplicatedSession:
    session = ReplicatedSession(Small(params or {}), small_config(steps=steps, **train), AllReduce())
    session.begin_at(0)
    session.run(steps)
    return session


def built(**train: Any) -> model_ops.BuiltModel:
    """Return the model and the optimizer of a session."""
    return model_ops.build(Small({}), small_config(**train))


@functools.cache
def plain() -> ReplicatedSession:
    """Return a session that was trained with default settings; all tests share it, and only read it."""
    return trained()


def weights(session: ReplicatedSession) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(v.value) for v in session.model.trainable_variables]


def difference(one: ReplicatedSession, other: ReplicatedSession) -> float:
    return max(float(np.max(np.abs(a - b))) for a, b in zip(weights(one), weights(other), strict=True))


RATES: list[tuple[dict[str, Any], dict[int, float]]] = [
    ({"schedule": "constant", "initial": 0.3}, {0: 0.3, 99: 0.3}),
    ({"schedule": "constant", "initial": 0.3, "warmup_steps": 10}, {0: 0.03, 4: 0.15, 10: 0.3, 99: 0.3}),
    ({"schedule": "cosine", "initial": 1.0}, {0: 1.0, 25: 0.5 * (1 + math.cos(math.pi / 4)), 50: 0.5, 100: 0.0}),
    ({"schedule": "cosine", "initial": 1.0, "final": 0.1, "decay_steps": 50}, {50: 0.1, 99: 0.1}),
    ({"schedule": "linear", "initial": 1.0, "warmup_steps": 20}, {9: 0.5, 20: 1.0, 60: 0.5, 100: 0.0}),
    ({"schedule": "exponential", "initial": 1.0, "decay_steps": 10, "decay_rate": 0.5}, {5: math.sqrt(0.5), 20: 0.25}),
    ({"schedule": "exponential", "initial": 1.0, "decay_steps": 10, "decay_rate": 0.5, "staircase": True}, {9: 1.0, 10: 0.5, 29: 0.25}),
    ({"schedule": "exponential", "initial": 1.0, "decay_steps": 10}, {10: 0.1}),
    ({"schedule": "piecewise", "initial": 1.0, "boundaries": [10, 20], "factors": [0.1, 0.01]}, {9: 1.0, 10: 0.1, 19: 0.1, 20: 0.01}),
    ({"schedule": "constant"}, {0: 0.05, 99: 0.05}),
    ({"schedule": "linear"}, {0: 0.05, 50: 0.025}),  # from the optimizer's own rate
]


@pytest.mark.parametrize("settings, expected", RATES)
def test_learning_rates_follow_the_schedule(settings: dict[str, Any], expected: dict[int, float]) -> None:
    optimizer = model_ops.build(Small({}), small_config(learning_rate=settings)).optimizer
    for step, rate in expected.items():
        optimizer.iterations.assign(step)
        assert float(optimizer.learning_rate) == pytest.approx(rate, abs=1e-6)


def test_a_schedule_is_rebuilt_from_its_configuration() -> None:
    optimizer = model_ops.build(Small({}), small_config(learning_rate={"schedule": "cosine", "warmup_steps": 3})).optimizer
    rebuilt = type(optimizer).from_config(optimizer.get_config())
    rebuilt.iterations.assign(40)
    optimizer.iterations.assign(40)
    assert float(rebuilt.learning_rate) == float(optimizer.learning_rate) > 0


def test_a_schedule_needs_an_initial_rate_if_the_optimizer_has_a_schedule_of_its_own() -> None:
    with pytest.raises(WorkloadError, match=r"ExponentialDecay.*add `initial`"):
        model_ops.build(Small({"schedule": True}), small_config(learning_rate={"schedule": "cosine"}))
    assert LearningRate(schedule="cosine").initial is None


class Halving(keras.optimizers.schedules.LearningRateSchedule):
    """Has no configuration, as in TensorFlow's tutorials."""

    def __call__(self, step: Any) -> Any:
        return 0.1 / (1.0 + tf.cast(step, tf.float32))


class Configured(Halving):
    """Has a configuration, but is not registered with Keras."""

    def get_config(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("rate", [Halving(), Configured(), lambda: 0.1])
def test_an_optimizer_is_copied_with_a_schedule_that_keras_cannot_serialize(rate: Any) -> None:
    class Scheduled(Small):
        def optimizer(self) -> keras.optimizers.Optimizer:
            return keras.optimizers.AdamW(rate, weight_decay=0.3, beta_1=0.8)

    built = model_ops.build(Scheduled({}), small_config(gradients={"clip_norm": 1.0})).optimizer
    assert (built._learning_rate, built.clipnorm, built.weight_decay, built.beta_1) == (rate, 1.0, 0.3, 0.8)
    assert copied(built)._learning_rate is rate
    assert packing.find_slots(built, 2).scalars == (0,)  # its count of steps: as a server finds them
    constant = model_ops.build(Scheduled({}), small_config(learning_rate={"initial": 0.5})).optimizer
    assert float(constant.learning_rate) == 0.5


def test_a_schedule_changes_the_weights() -> None:
    assert difference(plain(), trained(learning_rate={"schedule": "cosine"})) > 1e-2


def updated(params: dict[str, Any], **train: Any) -> list[np.ndarray[Any, Any]]:
    """Return the weights of a model after one update with gradients of 1."""
    built = model_ops.build(Small({"optimizer": "SGD", **params}), small_config(**train))
    variables = built.model.trainable_variables
    built.optimizer.apply([tf.ones(v.shape) for v in variables], variables)
    return [np.asarray(v.value) for v in variables]


@pytest.mark.parametrize(
    "clip, keras_name", [("clip_value", "clipvalue"), ("clip_norm", "clipnorm"), ("clip_global_norm", "global_clipnorm")]
)
def test_gradients_are_clipped_as_keras_clips_them(clip: str, keras_name: str) -> None:
    ours, plain_ones = updated({}, gradients={clip: 0.01}), updated({})
    for actual, expected, unclipped in zip(ours, updated({"arguments": {keras_name: 0.01}}), plain_ones, strict=True):
        np.testing.assert_array_equal(actual, expected)
        assert np.abs(actual - unclipped).max() > 1e-3


def test_a_session_clips_gradients() -> None:
    start = model_ops.build(Small({"optimizer": "SGD"}), small_config()).model.trainable_variables
    clipped = weights(trained({"optimizer": "SGD"}, gradients={"clip_norm": 0.01}))
    largest = STEPS * 0.05 * 0.01  # the distance of all steps in one direction
    for before, after in zip(start, clipped, strict=True):
        assert 0 < np.linalg.norm(after - np.asarray(before.value)) < largest * 1.001


def test_accumulated_batches_are_one_large_batch() -> None:
    whole = trained(batch_size=64)
    parts = ReplicatedSession(Small({}), small_config(steps=STEPS, batch_size=16, gradients={"accumulate": 4}), AllReduce())
    parts.begin_at(0)
    assert parts.run(STEPS).examples == STEPS * 64
    assert difference(whole, parts) < 1e-5


def test_accumulation_continues_where_it_stopped_and_moving_means_of_layers_pass_from_batch_to_batch() -> None:
    params = {"normalised": True}
    uninterrupted = trained(params, gradients={"accumulate": 3})
    resumed = trained(params, steps=STEPS // 2, gradients={"accumulate": 3})
    resumed.begin_at(STEPS // 2)
    resumed.run(STEPS // 2)
    assert difference(uninterrupted, resumed) == 0
    moving_means = [v for v in uninterrupted.model.non_trainable_variables if v.name == "moving_mean"]
    assert np.abs(np.asarray(moving_means[0].value)).max() > 0


def test_variables_that_the_workload_excludes_from_weight_decay_stay_excluded() -> None:
    params = {"optimizer": "AdamW", "arguments": {"weight_decay": 0.5}, "undecayed": ["bias"]}
    changed = model_ops.build(Small(params), small_config(learning_rate={"initial": 0.1}))
    decayed = {str(v.name) for v in changed.model.trainable_variables if changed.optimizer._use_weight_decay(v)}
    assert decayed == {"kernel"}


@pytest.mark.parametrize("precision, compute_dtype", [("mixed_bfloat16", "bfloat16"), ("mixed_float16", "float16")])
def test_mixed_precision_computes_in_half_and_keeps_float32_variables(precision: str, compute_dtype: str) -> None:
    session = trained(steps=200, precision=precision)
    assert {layer.compute_dtype for layer in session.model.layers} == {compute_dtype}
    assert {v.dtype for v in session.model.trainable_variables} == {"float32"}
    loss = session.run(10).loss
    assert loss is not None
    assert loss < 0.2


def test_a_dtype_policy_of_the_users_code_stays_unless_the_settings_set_another() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    assert built().model.layers[-1].compute_dtype == "bfloat16"
    assert built(precision="mixed_float16").model.layers[-1].compute_dtype == "float16"
    assert isinstance(built().optimizer, keras.optimizers.LossScaleOptimizer)
    servers = replace(small_config(), strategy="parameter_server")
    with pytest.raises(WorkloadError, match="parameter servers do not do that"):
        optimizer_setup.prepare(servers)


def test_loss_is_scaled_only_in_float16() -> None:
    assert isinstance(built(precision="mixed_float16").optimizer, keras.optimizers.LossScaleOptimizer)
    assert not isinstance(built(precision="mixed_bfloat16").optimizer, keras.optimizers.LossScaleOptimizer)


class Scaled(Small):
    """Scales its loss by an optimizer of its own."""

    def optimizer(self) -> keras.optimizers.Optimizer:
        return keras.optimizers.LossScaleOptimizer(super().optimizer(), initial_scale=8.0, dynamic_growth_steps=3)


class Half(Small):
    """Sets the policy only as the model is built."""

    def model(self) -> keras.Model:
        keras.config.set_dtype_policy("mixed_float16")
        return super().model()


class Cleared(Small):
    """Drops the policy before the model is built, as scripts that tune models begin."""

    def model(self) -> keras.Model:
        keras.utils.clear_session()
        return super().model()


class WholeAtTheEnd(Small):
    """Builds its last layer in float32, by the policy."""

    def model(self) -> keras.Model:
        half = super().model()
        keras.config.set_dtype_policy("float32")
        return keras.Sequential([half, keras.layers.Dense(2)])


def test_a_precision_that_no_layer_has_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"train\.precision is mixed_bfloat16, but no layer .* computes in float32\. .*clear_session"):
        model_ops.build(Cleared({}), small_config(precision="mixed_bfloat16"))


def test_the_loss_is_scaled_if_only_some_layers_compute_in_float16() -> None:
    optimizer = model_ops.build(WholeAtTheEnd({}), small_config(precision="mixed_float16")).optimizer
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_a_workloads_own_loss_scale_stays(precision: str) -> None:
    optimizer = model_ops.build(Scaled({}), small_config(learning_rate={"initial": 0.5}, precision=precision)).optimizer
    assert float(optimizer.inner_optimizer.learning_rate) == 0.5
    assert (optimizer.initial_scale, optimizer.dynamic_growth_steps) == (8.0, 3)


@pytest.mark.parametrize("kind", [Scaled, Half])
def test_parameter_servers_refuse_a_workload_that_scales_the_loss(kind: type[Small]) -> None:
    with pytest.raises(WorkloadError, match=r"scales the loss .* parameter servers do not do that; set mixed_bfloat16"):
        model_ops.build(kind({}), replace(small_config(), strategy="parameter_server"))


def test_xla_trains_the_same_weights() -> None:
    compiled = trained(jit_compile=True)
    assert difference(compiled, plain()) < 1e-5
    # The loop that calls it is not compiled, so the compiled part is a function in its graph.
    graph = compiled._call.get_concrete_function(compiled._iterator, tf.constant(1), tf.zeros([3])).graph.as_graph_def()
    assert any("_XlaMustCompile" in function.attr for function in graph.library.function)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    params = {"dropout": True}
    one = trained(params)
    assert difference(one, trained(params)) == 0
    assert difference(one, trained(params, seed=5)) > 0


def test_progress_reports_the_wait_for_input() -> None:
    slow_batches = 30

    class Slow(Small):
        def train_data(self, shard: Any) -> tf.data.Dataset:
            def wait(index: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
                inputs = tf.numpy_function(_sleep, [batch[0], index < slow_batches], tf.float32)
                return tf.ensure_shape(inputs, batch[0].shape), batch[1]

            return super().train_data(shard).enumerate().map(wait)

    session = ReplicatedSession(Slow({}), small_config(steps=100), AllReduce())
    session.begin_at(0)
    session.run(1)
    waited = session.run(10).input_wait
    assert waited is not None
    assert 0.5 < waited <= 1
    session.run(slow_batches)
    assert 0 <= (session.run(10).input_wait or 0) < waited


def _sleep(values: Any, slow: Any) -> Any:
    if slow:
        time.sleep(0.02)
    return values
