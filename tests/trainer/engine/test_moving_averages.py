"""Moving averages of variables: optimizers compute them, evaluations and exports use them, and a resumed run continues with them."""

import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.engine.small import Small, small_config
from tests.trainer.engine.test_loop import Output, Run, settings, train
from trainer.engine import evaluator, model_ops, moving_averages
from trainer.events import Reporter
from trainer.workloads.averaged_sgd import AveragedSGD

KERAS_EMA = {"optimizer": "SGD", "arguments": {"use_ema": True, "ema_momentum": 0.9}}


@pytest.mark.parametrize("momentum", [0.9999, 0.5])
def test_averages_equal_a_numpy_reference(momentum: float) -> None:
    variable = keras.Variable(np.array([1.0, -2.0], np.float32))
    optimizer = AveragedSGD(0.1, ema_momentum=momentum)
    optimizer.build([variable])
    random = np.random.default_rng(3)
    value, average = variable.numpy().astype(float), np.zeros(2)
    for step in range(1, 41):
        gradient = random.normal(size=2)
        optimizer.apply([tf.constant(gradient, tf.float32)], [variable])
        value = value - 0.1 * gradient
        decay = min(momentum, (1 + step) / (10 + step)) if step > 1 else 0
        average = decay * average + (1 - decay) * value
        np.testing.assert_allclose(optimizer._model_variables_moving_average[0].numpy(), average, rtol=1e-5, atol=1e-6)
    assert abs(average - value).max() > 0.01


def test_an_optimizer_is_rebuilt_from_its_configuration() -> None:
    optimizer = AveragedSGD(0.3, ema_momentum=0.7, nesterov=True, momentum=0.8)
    rebuilt = AveragedSGD.from_config(optimizer.get_config())
    assert rebuilt.get_config() == optimizer.get_config()
    assert (rebuilt.use_ema, rebuilt.ema_momentum, rebuilt.momentum) == (True, 0.7, 0.8)


def model_after(steps: int) -> model_ops.BuiltModel:
    built = model_ops.build(Small(KERAS_EMA), small_config(1))
    for _ in range(steps):
        built.optimizer.apply([tf.ones(v.shape) for v in built.model.trainable_variables], built.model.trainable_variables)
    return built


def weights(built: model_ops.BuiltModel) -> list[Any]:
    return [v.numpy() for v in built.model.trainable_variables]


def test_a_model_shows_its_averages_and_gets_its_own_values_back_even_after_an_error() -> None:
    built = model_after(5)
    before = weights(built)
    during: list[Any] = []

    def use_averages() -> None:
        with moving_averages.swapped_in(built.model, built.optimizer):
            during.extend(weights(built))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use_averages()
    for own, shown, restored, average in zip(before, during, weights(built), built.optimizer._model_variables_moving_average, strict=True):
        np.testing.assert_array_equal(restored, own)
        np.testing.assert_array_equal(shown, average.numpy())
        assert abs(shown - own).min() > 0.01


def test_a_model_keeps_its_own_values_before_the_first_step() -> None:
    built = model_after(0)
    before = weights(built)
    moving_averages.swap_in(built.model, built.optimizer)
    for own, current in zip(before, weights(built), strict=True):
        np.testing.assert_array_equal(current, own)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of 20 steps that has exported its model."""
    path = tmp_path_factory.mktemp("run")
    return Run(path, *train(path, 20, params=KERAS_EMA, export={"formats": ["keras"]}))


def test_a_run_is_evaluated_with_averages_and_resumes_with_them(tmp_path: Path, run: Run) -> None:
    straight, expected, _ = train(tmp_path / "straight", 40, params=KERAS_EMA)
    shutil.copytree(run.path, tmp_path / "halves")
    resumed, outcome, output = train(tmp_path / "halves", 40, params=KERAS_EMA)
    assert [event["step"] for event in output.events("restored")] == [20]
    for whole, half in zip(straight.optimizer.variables, resumed.optimizer.variables, strict=True):
        np.testing.assert_array_equal(whole.numpy(), half.numpy())
    assert outcome.metrics == expected.metrics
    evaluate = model_ops.evaluation(Small(KERAS_EMA), resumed.model, 100)
    own = evaluate()
    with moving_averages.swapped_in(resumed.model, resumed.optimizer):
        averaged = evaluate()
    assert outcome.metrics["loss"] == pytest.approx(averaged["loss"], rel=1e-6)
    assert abs(averaged["loss"] - own["loss"]) > 1e-3


def test_the_evaluator_reads_averages_from_the_checkpoint(tmp_path: Path, run: Run) -> None:
    shutil.copytree(run.path, tmp_path, dirs_exist_ok=True)
    (tmp_path / "evaluations.json").unlink()
    last = evaluator.evaluate_checkpoints(Small(KERAS_EMA), settings(tmp_path, 20), Reporter("evaluator", Output()), lambda: False)
    assert last is not None
    step, metrics = last
    assert step == 20
    assert metrics["loss"] == pytest.approx(run.outcome.metrics["loss"], rel=1e-5)


def test_the_exported_model_has_the_averages(run: Run) -> None:
    exported = keras.models.load_model(run.path / "export" / "best" / "model.keras")
    for weight, average, own in zip(
        exported.weights, run.session.optimizer._model_variables_moving_average, run.session.model.weights, strict=True
    ):
        np.testing.assert_array_equal(weight.numpy(), average.numpy())
        assert abs(weight.numpy() - own.numpy()).max() > 1e-4
