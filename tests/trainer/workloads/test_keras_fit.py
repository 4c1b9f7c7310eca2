"""One process trains and evaluates a compiled Keras model as Keras's own `fit` and `evaluate` do."""

import functools
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.trainer.workloads.fitting import BATCH, STEPS, Fitted, Source, by_keras, by_trainer, config_of, workload
from trainer.engine import model_ops
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.replicated import ReplicatedSession
from trainer.workloads.errors import WorkloadError


@pytest.fixture(scope="module")
def models() -> Iterator[dict[str, Source]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).with_name("own_code")))
        yield import_module("fitted").MODELS
    sys.modules.pop("fitted", None)


def trained(source: Source, definitions: dict[str, Any] | None = None, **train: Any) -> Fitted:
    keras_model = workload(source, **(definitions or {}))
    return by_trainer(ReplicatedSession(keras_model, config_of(**train), AllReduce()), keras_model)


@pytest.fixture(scope="module")
def trained_once(models: dict[str, Source]) -> Callable[[str], Fitted]:
    """Return a function that trains a model with the default options, each once for all tests."""
    return functools.cache(lambda name: trained(models[name]))


@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")  # Keras's, for `partly`
@pytest.mark.parametrize(
    "name",
    [
        "layers",
        "outputs",
        "masked",
        "one_hot",
        "scaled",
        "gathered",
        "overwritten",
        "averaged",
        "function",
        "partly",
        "partly_guided",
        "added",
        "reading",
        "judging",
        "guide",
        "tracked",
        "counted",
        "nested",
        "perturbed",
        "parts",
    ],
)
def test_training_and_evaluation_equal_those_of_fit(models: dict[str, Source], trained_once: Callable[[str], Fitted], name: str) -> None:
    theirs, ours = by_keras(models[name]), trained_once(name)
    assert ours.evaluated.keys() == theirs.evaluated.keys() - {"side_loss", "first_loss"}  # the parts of a loss are not reported
    assert ours.reported.keys() == ours.evaluated.keys()
    assert max(ours.differences(theirs).values()) < 1e-4
    if name not in ("nested", "perturbed"):  # for these `fit` reports the loss metric, which they do not update
        assert ours.reported["loss"] == pytest.approx(theirs.reported["loss"], abs=1e-4)


@pytest.mark.parametrize("name", ["guide", "outputs"])
def test_early_stopping_knows_the_metrics_of_a_compiled_model_before_training(
    models: dict[str, Source], trained_once: Callable[[str], Fitted], name: str
) -> None:
    keras_model = workload(models[name])
    names = model_ops.evaluated_names(keras_model, model_ops.build(keras_model, config_of()).model)
    assert names is not None
    assert set(names) == trained_once(name).evaluated.keys() > {"loss"}


def test_a_metric_may_return_its_variable_or_a_dictionary(models: dict[str, Source]) -> None:
    ours = trained(models["counting"])
    positives = float(models["counting"][1]()[1].sum())
    in_a_batch = positives / STEPS
    assert {name: ours.reported[name] for name in ("positives", "ones")} == {"positives": in_a_batch, "ones": in_a_batch}
    assert {name: ours.evaluated[name] for name in ("positives", "ones")} == {"positives": positives, "ones": positives}
    assert (ours.reported["halves"], ours.evaluated["halves"]) == (in_a_batch / 2, positives / 2)


def test_one_replica_may_apply_gradients_more_than_once(trained_once: Callable[[str], Fitted]) -> None:
    assert trained_once("twice").differences(trained_once("plain"))["weights"] < 1e-5


def test_class_weights_have_the_effect_that_they_have_in_fit(models: dict[str, Source], trained_once: Callable[[str], Fitted]) -> None:
    weights = {0: 1.0, 1: 3.0}
    theirs = by_keras(models["plain"], {"class_weight": weights})
    ours = trained(models["plain"], {"class_weight": lambda: weights})
    assert max(ours.differences(theirs).values()) < 1e-4
    assert max(ours.differences(trained_once("plain")).values()) > 1e-3


@pytest.mark.parametrize(
    "name,train,message",
    [
        ("listed", {}, r"Listed\.train_step applies gradients with another optimizer than the compiled one"),
        ("no_input", {}, r"Parts has no `call`, and its part dense.* is not built; define `call`"),
        ("two", {}, r"Two\.train_step applies gradients with another optimizer than the compiled one, and its state would not be saved"),
        (
            "guide",
            {"precision": "mixed_float16"},
            r"Guide\.train_step does not scale the loss for mixed_float16\. Take the gradients of self",
        ),
        ("guide", {"gradients": {"accumulate": 2}}, r"train\.gradients\.accumulate changes .* has train_step of its own; leave it out"),
        ("added_never", {}, r"is compiled without a loss, and no layer adds one \(add_loss\); call model\.compile"),
        ("unmeasured", {}, r"compiled without a loss .*; evaluations need a loss: give `compile` one, or write a `test_step`"),
        (
            "unlearned",
            {},
            r"Guide\.train_step applies gradients that are all None: nothing would be learned; compute the loss from the model's",
        ),
        ("counted", {"jit_compile": True}, r"train\.jit_compile changes .* has compute_metrics of its own"),
    ],
)
def test_what_cannot_be_trained_is_refused(models: dict[str, Source], name: str, train: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        trained(models[name], **train)


def test_weights_to_which_a_custom_step_has_no_gradient_are_named(models: dict[str, Source]) -> None:
    session = ReplicatedSession(workload(models["partly_guided"]), config_of(), AllReduce())
    assert session.without_gradient == ("stopped/kernel", "stopped/bias")


def test_an_error_in_compute_loss_leaves_the_layers_own_losses(models: dict[str, Source], monkeypatch: pytest.MonkeyPatch) -> None:
    keras_model = workload(models["moving"])
    model = keras_model.model()
    inputs, targets = next(iter(keras_model.eval_data(BATCH)))
    monkeypatch.setattr(type(model), "compute_loss", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        keras_model.total_loss((inputs, targets), model(inputs), [tf.constant(7.0)], (), training=False)
    assert model.losses == []


def test_losses_of_layers_are_a_loss_for_evaluations(models: dict[str, Source]) -> None:
    assert trained(models["pulled"]).reported["loss"] > 0


def test_clipping_and_the_learning_rate_of_the_spec_apply_to_a_custom_step(
    models: dict[str, Source], trained_once: Callable[[str], Fitted]
) -> None:
    options = {"learning_rate": {"initial": 0.5}, "gradients": {"clip_global_norm": 0.05}}
    custom, standard = trained(models["guide"], **options), trained(models["plain"], **options)
    assert max(custom.differences(standard).values()) < 1e-5
    assert max(custom.differences(trained_once("guide")).values()) > 1e-3
