"""Computations that are the same under every strategy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.engine.small import Small, small_config
from trainer.engine import model_ops
from trainer.workloads.errors import WorkloadError


def test_an_evaluation_is_the_mean_over_examples_even_if_the_last_batch_is_small() -> None:
    workload = Small({})
    model = model_ops.build(workload, small_config(3)).model
    whole = model_ops.evaluation(workload, model, batch_size=400)()
    pieces = model_ops.evaluation(workload, model, batch_size=150)()
    assert pieces.keys() == whole.keys() == {"loss", "accuracy"}
    for name, value in whole.items():
        assert pieces[name] == pytest.approx(value, rel=1e-5)


class Sized(Small):
    """Has a loss that needs the static size of a batch."""

    def loss(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=outputs)
        return tf.reduce_sum(losses) / float(targets.shape[0])


def test_a_loss_may_need_the_size_of_a_batch() -> None:
    model = model_ops.build(Small({}), small_config(3)).model
    actual, expected = (model_ops.evaluation(workload, model, batch_size=150)() for workload in (Sized({}), Small({})))
    assert actual == pytest.approx(expected, rel=1e-5)


def test_the_batches_of_an_evaluation_are_traced_once() -> None:
    traced_shapes = []

    class Counted(Small):
        def loss(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
            traced_shapes.append(targets.shape)
            return super().loss(targets, outputs)

    model_ops.evaluation(Counted({}), model_ops.build(Small({}), small_config(3)).model, batch_size=150)()
    assert len(traced_shapes) == 1


def test_held_out_data_is_not_tuned() -> None:
    """The thread that tunes an iterator may take a minute to end."""

    class Tuned(Small):
        def eval_data(self, batch_size: int) -> tf.data.Dataset:
            return tf.data.Dataset.range(9).map(lambda n: (n, n), num_parallel_calls=tf.data.AUTOTUNE).batch(batch_size)

    assert Tuned({}).eval_data(3).options().autotune.enabled is None
    assert model_ops.held_out_data(Tuned({}), 3).options().autotune.enabled is False


class Stepped(Small):
    """Evaluates with a step of its own."""

    def customizations(self) -> tuple[str, ...]:
        return ("test_step",)

    def prepare_steps(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        pass

    def train_step(self, inputs: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
        return self.test_step(inputs, targets)

    def reset(self) -> None:
        pass

    def test_step(self, inputs: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"loss": self.loss(targets, inputs[:, :2])}


@pytest.mark.parametrize("kind", [Small, Stepped])
def test_a_held_out_set_without_a_batch_is_an_error_with_a_remedy(kind: type[Small], monkeypatch: pytest.MonkeyPatch) -> None:
    workload = kind({})
    model, eval_data = workload.model(), workload.eval_data
    monkeypatch.setattr(workload, "eval_data", lambda batch_size: eval_data(batch_size).filter(lambda *_: False))
    with pytest.raises(WorkloadError, match=r"\(eval_data\) has no batch: give it examples"):
        model_ops.evaluation(workload, model, 1000)()


def test_start_weights_follow_the_seed() -> None:
    first, again, other = (model_ops.build(Small({}), small_config(seed)).model.trainable_variables[0].numpy() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


class Scheduled(Small):
    """Has a learning rate that falls with each epoch."""

    def optimizer_for(self, examples_per_step: int) -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 400 // examples_per_step, 0.5, staircase=True))


def test_optimizer_for_gets_the_number_of_examples_of_a_step() -> None:
    config = small_config(batch_size=10, gradients={"accumulate": 2})
    optimizer = model_ops.build(Scheduled({}), config, replicas=5).optimizer
    for step, rate in ((0, 0.1), (3, 0.1), (4, 0.05), (8, 0.025)):
        optimizer.iterations.assign(step)
        assert float(optimizer.learning_rate) == pytest.approx(rate)


class Unbuilt(Small):
    """Has a model without an input shape."""

    def model(self) -> keras.Model:
        return keras.Sequential([keras.layers.Dense(2)])


def test_a_model_without_weights_is_an_error_with_a_remedy() -> None:
    with pytest.raises(WorkloadError, match=r"no trainable weights: give it an input shape"):
        model_ops.build(Unbuilt({}), small_config())


@pytest.mark.parametrize("unrolled", [1, 4])
def test_a_loop_takes_each_step_once_for_any_number_of_unrolled_steps(unrolled: int) -> None:
    """The sum of 2^step shows which steps ran. The sixth has no finite loss; finite losses after it do not count.

    Each step reads the variable that the previous one wrote.
    """
    count = tf.Variable(0.0)

    @tf.function(autograph=False)
    def run(steps: tf.Tensor) -> tf.Tensor:
        def step(index: tf.Tensor) -> tf.Tensor:
            loss = tf.where(tf.equal(count, 5), float("nan"), 1.0)
            count.assign_add(1)
            return tf.stack([loss, tf.pow(2.0, tf.cast(index, tf.float32))])

        return model_ops.repeat(steps, step, 2, unrolled=unrolled)

    for steps in (0, 1, 3, 4, 5, 9):
        count.assign(0)
        _, taken, finite = run(tf.constant(steps)).numpy()
        assert (taken, finite) == (2**steps - 1, min(steps, 5))
