"""The steps of a call on parameter servers, in one process: their random numbers, and how often they are compiled."""

from typing import Any

import keras
import pytest
import tensorflow as tf

from tests.trainer.engine.small import Alike, Small, small_config
from trainer.engine import model_ops
from trainer.engine.replica import Replica
from trainer.workloads.errors import WorkloadError
from trainer.workloads.protocol import Shard

STEPS = 4


class Noisy(Alike):
    """Its outputs are the number that a stateful operation of TensorFlow draws, and the fraction of ones that a Dropout layer keeps.

    The loss is the first of them, the metrics are its square, the other one, and its square.
    """

    def model(self) -> keras.Model:
        inputs = keras.Input((4,))
        noise = keras.layers.Lambda(lambda outputs: 0 * outputs + tf.random.uniform([1, 1]), output_shape=(1,))
        ones = keras.layers.Lambda(lambda outputs: tf.ones_like(outputs) / 2, output_shape=(16,))
        kept = keras.layers.Dropout(0.5, seed=3)(ones(keras.layers.Dense(16)(inputs)))
        outputs = [noise(keras.layers.Dense(1)(inputs)), keras.layers.GlobalAveragePooling1D()(keras.layers.Reshape((16, 1))(kept))]
        return keras.Model(inputs, keras.layers.Concatenate()(outputs))

    def loss(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        del targets
        return tf.reduce_mean(outputs[:, 0])

    def metrics(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        del targets
        drawn, kept = tf.unstack(tf.reduce_mean(outputs, axis=0))
        return {"square": drawn**2, "kept": kept, "kept square": kept**2}


class Unseeded(Noisy):
    """Draws by functions of keras.random without a seed: in the loss one number, in the model the difference between iterations of a loop."""

    def model(self) -> keras.Model:
        inputs = keras.Input((4,))
        looping = keras.layers.Lambda(lambda outputs: 0 * outputs + _difference_in_a_loop(), output_shape=(2,))
        return keras.Model(inputs, looping(keras.layers.Dense(2)(inputs)))

    def loss(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        del targets
        return tf.reduce_mean(0 * outputs) + keras.random.uniform([])

    def metrics(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        del targets
        drawn, difference = keras.random.uniform([]), tf.reduce_mean(outputs)
        return {"drawn": drawn, "drawn square": drawn**2, "difference": difference, "difference square": difference**2}


def _difference_in_a_loop() -> tf.Tensor:
    def body(index: tf.Tensor, difference: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return index + 1, keras.random.uniform([]) - difference

    return tf.while_loop(lambda index, _: index < 2, body, (tf.constant(0), tf.constant(0.0)))[1]


class Adapted(Small):
    """Has integers that a step does not change, the count of a Normalization layer, and with `counting` one that it changes."""

    def model(self) -> keras.Model:
        adapted = keras.layers.Normalization()
        adapted.adapt(self._inputs)
        counting = [Counting(name="counting")] if self._params.get("counting") else []
        return keras.Sequential([keras.Input((4,)), adapted, *counting, keras.layers.Dense(2)])


class Counting(keras.layers.Layer):
    """Counts its calls."""

    def build(self, input_shape: Any) -> None:
        self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="count")
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        self.count.assign_add(1)
        return inputs


def take_call(workload: Any, **settings: Any) -> tuple[Replica, Any]:
    """Take STEPS steps in one loop, as a call does; return their replica, and the sums of their measures."""
    config = small_config(**settings)
    built = model_ops.build(workload, config)
    replica = Replica(workload, built.model, built.optimizer, config)
    values = [v.value for v in built.model.trainable_variables]
    others = [v.value for v in built.model.non_trainable_variables if v.value.dtype.is_floating]

    @tf.function(autograph=False)
    def call(iterator: Any) -> tf.Tensor:
        def step(index: tf.Tensor) -> tf.Tensor:
            trainable, non_trainable = ([tf.identity(v) for v in part] for part in (values, others))
            return replica.stateless_step(iterator, trainable, non_trainable, tf.constant(0), index)[0]

        return model_ops.repeat(tf.constant(STEPS), step, replica.width, unrolled=STEPS)

    return replica, call(iter(workload.train_data(Shard(config.batch_size, config.seed)))).numpy()


@pytest.mark.parametrize("jit_compile", [False, True])
def test_each_step_of_a_call_draws_its_own_numbers_and_is_compiled_once(jit_compile: bool) -> None:
    replica, (total, squares, kept, kept_squares, *_) = take_call(Noisy({}), jit_compile=jit_compile)
    for numbers, their_squares in ((total, squares), (kept, kept_squares)):
        mean = numbers / STEPS
        assert their_squares / STEPS - mean**2 > 1e-4  # their variance
    if jit_compile:
        compiled: Any = replica._gradients_at
        assert compiled.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("settings", [{}, {"jit_compile": True}, {"gradients": {"accumulate": 2}}], ids=["", "compiled", "accumulated"])
def test_keras_draws_other_numbers_without_a_seed_in_each_step_of_a_call(settings: dict[str, Any]) -> None:
    _, (loss, drawn, drawn_squares, difference, difference_squares, *_) = take_call(Unseeded({}), **settings)
    for numbers, their_squares in ((drawn, drawn_squares), (difference, difference_squares)):
        mean = numbers / STEPS
        assert their_squares / STEPS - mean**2 > 1e-4  # their variance
    assert abs(loss - drawn) > 1e-4


def test_integers_that_a_step_changes_are_refused_by_name() -> None:
    take_call(Adapted({}))
    message = r"changes .*counting/count \(int32\) in a training step, .* give it the dtype .float32., or use strategy single, mirrored or"
    with pytest.raises(WorkloadError, match=message):
        take_call(Adapted({"counting": True}))
