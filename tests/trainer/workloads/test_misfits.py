"""A Keras model that does not fit its data: the one line with which a run ends. The trainer refuses nothing before Keras does."""

import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from tests.trainer.workloads import fitting
from trainer import roles
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.replicated import ReplicatedSession
from trainer.workloads.errors import WorkloadError
from trainer.workloads.keras_model import KerasWorkload


def two_inputs() -> keras.Model:
    first, second = keras.Input((4,), name="a"), keras.Input((2,), name="b")
    outputs = keras.layers.Dense(3)(keras.layers.Concatenate()([first, second]))
    return compiled(keras.Model({"a": first, "b": second}, outputs, name="two"), "mse")


def dense(loss: str) -> keras.Model:
    return compiled(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)], name="small"), loss)


def compiled(model: keras.Model, loss: str) -> keras.Model:
    model.compile("sgd", loss)
    return model


def zeros(*shape: int) -> np.ndarray:
    return np.zeros((20, *shape), np.float32)


def error_of(keras_model: KerasWorkload) -> Exception:
    """Return the error of a first step with only the trainer's frames."""
    with pytest.raises(Exception, match=r".") as raised:
        prepare_and_step(keras_model)
    assert raised.value.__traceback__ is not None
    assert raised.value.__traceback__.tb_next is not None
    return raised.value.with_traceback(raised.value.__traceback__.tb_next.tb_next)


def prepare_and_step(keras_model: KerasWorkload) -> None:
    session = ReplicatedSession(keras_model, fitting.config_of(), AllReduce())
    session.begin_at(0)
    session.run(1)


@pytest.mark.parametrize(
    "model,inputs,targets,message",
    [
        (
            lambda: dense("mse"),
            zeros(5),
            zeros(3),
            (
                r"train\.workload mine:model: model and data do not fit: Input 0 .* of layer .* expected axis -1 of input shape to have value 4, .*"
                r"; eval_data gives inputs \(None, 5\) and targets \(None, 3\); "
                r"the model 'small' takes \(None, 4\) and gives \(None, 3\)$"
            ),
        ),
        (
            two_inputs,
            {"a": zeros(4), "b": zeros(3)},
            zeros(3),
            r"Input 1 with name 'b' of layer 'two' .*'b': \(None, 3\).* takes \[\(None, 4\), \(None, 2\)\]",
        ),
        (two_inputs, {"a": zeros(4)}, zeros(3), "Missing data for input .b."),
        (two_inputs, zeros(4), zeros(3), "expects 2 named input"),
        (lambda: dense("categorical_crossentropy"), zeros(4), zeros(2), r"must have the same shape.*targets \(None, 2\)"),
        (lambda: dense("sparse_categorical_crossentropy"), zeros(4), zeros(2), r"must have rank"),
        (lambda: dense("mse"), zeros(4), zeros(2), r"do not fit: Incompatible shapes: .*gives \(None, 3\)"),
    ],
    ids=["axis", "second input", "missing input", "number of inputs", "targets", "integer targets", "loss"],
)
def test_model_and_data_are_named_with_their_shapes(model: Callable[[], keras.Model], inputs: Any, targets: Any, message: str) -> None:
    keras_model = fitting.workload((model, lambda: (inputs, targets)))
    explained = keras_model.explained(error_of(keras_model))
    assert isinstance(explained, WorkloadError)
    assert re.search(message, str(explained)), explained


def test_other_errors_and_errors_from_lines_of_the_user_stay_unchanged() -> None:
    keras_model = fitting.workload((lambda: dense("mse"), lambda: (zeros(4), zeros(3))))
    keras_model.model()
    assert keras_model.explained(ValueError("no such file")) is None
    assert keras_model.explained(KeyError("is incompatible with the layer: ")) is None
    with pytest.raises(ValueError, match=r"^Input 0 of mine is incompatible") as raised, roles.explain_errors(keras_model):
        raise ValueError("Input 0 of mine is incompatible with the layer: ")  # in a file that is not the trainer's
    assert not isinstance(raised.value, WorkloadError)


def test_the_explanation_replaces_the_error() -> None:
    class Explains:
        def explained(self, error: Exception) -> WorkloadError:
            return WorkloadError(f"because of {error}")

    with pytest.raises(WorkloadError, match="because of it") as raised, roles.explain_errors(Explains()):  # type: ignore[arg-type]
        raise ValueError("it")
    assert isinstance(raised.value.__cause__, ValueError)
