"""mnist_mlp: its published numbers; it learns the synthetic digits, which a linear classifier does not."""

from itertools import islice

import keras
import numpy as np
import pytest

from tests.trainer.workloads.learning import accuracy, train
from trainer.workloads.errors import WorkloadError
from trainer.workloads.mnist_mlp import MnistMlp
from trainer.workloads.protocol import Shard


@pytest.fixture(scope="module")
def workload() -> MnistMlp:
    return MnistMlp(params={}, data="synthetic", seed=0)


class Linear(MnistMlp):
    """The same digits with no hidden layer."""

    def model(self) -> keras.Model:
        return keras.Sequential([keras.Input((784,), dtype="uint8"), keras.layers.Rescaling(1 / 255), keras.layers.Dense(10)])


def test_the_network_has_the_published_shapes_and_start_values(workload: MnistMlp) -> None:
    model = workload.model()
    assert [tuple(variable.shape) for variable in model.trainable_variables] == [(784, 100), (100,), (100, 10), (10,)]
    hidden, hidden_bias, logits, logits_bias = (keras.ops.convert_to_numpy(variable) for variable in model.trainable_variables)
    for weights, stddev in ((hidden, 1 / 28), (logits, 0.1)):
        # A normal distribution cut at two standard deviations has 0.88 of its standard deviation.
        assert abs(weights).max() <= 2 * stddev
        assert weights.std() == pytest.approx(0.88 * stddev, rel=0.05)
    assert not hidden_bias.any()
    assert not logits_bias.any()
    optimizer = workload.optimizer()
    assert isinstance(optimizer, keras.optimizers.Adam)
    assert float(optimizer.learning_rate) == pytest.approx(0.01)


def test_parameters_change_the_network_and_the_optimizer() -> None:
    workload = MnistMlp(params={"hidden_units": 25, "learning_rate": 0.5}, data="synthetic", seed=0)
    weights = workload.model().trainable_variables
    assert tuple(weights[0].shape) == (784, 25)
    assert abs(keras.ops.convert_to_numpy(weights[2])).max() > 0.3
    assert float(workload.optimizer().learning_rate) == 0.5


def test_wrong_parameters_are_all_named() -> None:
    with pytest.raises(WorkloadError) as caught:
        MnistMlp(params={"hidden_units": 0, "learning_rat": 0.1}, data="synthetic", seed=0)
    message = str(caught.value)
    assert "train.params.hidden_units" in message
    assert "found 0" in message
    assert "train.params.learning_rat" in message
    assert "the parameters are hidden_units, learning_rate" in message


def test_the_seed_decides_the_start_weights() -> None:
    def start(seed: int) -> np.ndarray:
        workload = MnistMlp(params={}, data="synthetic", seed=seed)
        weights: np.ndarray = keras.ops.convert_to_numpy(workload.model().trainable_variables[0])
        return weights

    np.testing.assert_array_equal(start(3), start(3))
    assert (start(3) != start(4)).mean() > 0.9


def test_batches_fit_the_model(workload: MnistMlp) -> None:
    inputs, targets = next(iter(workload.train_data(Shard(batch_size=100, seed=0))))
    assert (inputs.shape, inputs.dtype.name) == ((100, 784), "uint8")
    model = workload.model()
    outputs = model(inputs)
    assert outputs.shape == (100, 10)
    stateless, _ = model.stateless_call(model.trainable_variables, model.non_trainable_variables, inputs, training=True)
    np.testing.assert_allclose(stateless, outputs, atol=1e-5)
    # Untrained, ten classes: the loss is near ln 10, the accuracy near a tenth.
    assert float(workload.loss(targets, outputs)) == pytest.approx(np.log(10), abs=0.4)
    assert float(workload.metrics(targets, outputs)["accuracy"]) < 0.35


def test_training_and_test_digits_differ(workload: MnistMlp) -> None:
    train_images = {inputs.numpy().tobytes() for inputs, _ in islice(workload.train_data(Shard(1, seed=0)), 500)}
    test_images = {inputs.numpy().tobytes() for inputs, _ in islice(workload.eval_data(1), 500)}
    assert len(train_images) == len(test_images) == 500
    assert not train_images & test_images


def test_it_learns_the_synthetic_digits(workload: MnistMlp) -> None:
    model = workload.model()
    assert accuracy(workload, model) < 0.3
    train(workload, model, 700)
    assert accuracy(workload, model) >= 0.97


def test_a_linear_classifier_does_not_learn_them(workload: MnistMlp) -> None:
    linear = Linear(params={}, data="synthetic", seed=0)
    model = linear.model()
    train(linear, model, 600)
    assert 0.6 < accuracy(workload, model) < 0.93
