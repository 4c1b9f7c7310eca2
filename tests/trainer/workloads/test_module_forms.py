"""A compiled Keras model and a model function as workloads: what they compute, and each way in which they can be wrong."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.engine.small import small_config
from trainer.engine import model_ops
from trainer.settings import Train
from trainer.workloads.errors import WorkloadError
from trainer.workloads.loading import load_workload
from trainer.workloads.protocol import Shard, Workload

DATA = """
import keras, numpy as np, tensorflow as tf
from trainer.workloads.train_op import minimize
def train_data(): return np.zeros((8, 4), np.float32), np.zeros((8, 1), np.float32)
eval_data = train_data
"""

CODE = {
    "models": DATA
    + """
number = 3
class Own(keras.Model):
    pass
class Looping(keras.Model):
    def fit(self, *_, **__): return None
def plain(units, learning_rate=0.1, seed=0): return keras.Sequential([keras.layers.Dense(units)])
made = plain(1)
def nothing(): return None
def looping(): m = Looping(); m.compile("sgd", "mse"); return m
def stateful(): m = keras.Sequential([keras.layers.LSTM(2, stateful=True, name="memory")]); m.compile("sgd", "mse"); return m
def eager(): m = keras.Sequential([keras.layers.Dense(1)]); m.compile("sgd", "mse", run_eagerly=True); return m
def everything(**params): return params
""",
    "called": DATA
    + """
def model(): m = keras.Sequential([keras.layers.Dense(1)]); m.compile("sgd", "mse"); return m
def callbacks(patience=3): return [keras.callbacks.EarlyStopping(patience=patience)]
class Class:
    def __init__(self, params, data, seed): pass
    def model(self): pass
    optimizer = loss = metrics = train_data = eval_data = model
""",
    "slotted": DATA
    + """
callbacks = []
class Class:
    __slots__ = ()
    def __init__(self, params, data, seed): pass
    def model(self): pass
    optimizer = loss = metrics = train_data = eval_data = model
""",
    "weighing": DATA
    + """
class_weight = {0: 1.0, 1: 5.0}
def function(features, targets): pass
class Class:
    def __init__(self, params, data, seed): pass
    def model(self): pass
    optimizer = loss = metrics = train_data = eval_data = model
""",
    "imported": DATA
    + """
import keras.losses as class_weight
from keras import callbacks, metrics
def model(): m = keras.Sequential([keras.layers.Dense(1)]); m.compile("sgd", "mse"); return m
def function(features, targets):
    p = keras.layers.Dense(1)(features)
    return p, tf.reduce_mean((p - targets) ** 2), keras.optimizers.SGD(0.1)
class Class:
    def __init__(self, params, data, seed): pass
    def model(self): pass
    optimizer = loss = metrics = train_data = eval_data = model
""",
    "unlisted": DATA
    + """
def model(): m = keras.Sequential([keras.layers.Dense(1)]); m.compile("sgd", "mse"); return m
callbacks = keras.callbacks.EarlyStopping()
""",
    "wrong": DATA
    + """
def model(): m = keras.Sequential([keras.layers.Dense(1)]); m.compile("sgd", "mse"); return m
def callbacks(kind="none"): return {"none": None, "class": [keras.callbacks.EarlyStopping], "number": [keras.callbacks.EarlyStopping(), 3]}[kind]
""",
    "functions": DATA
    + """
outside = None
def loss_of(p, targets): return tf.reduce_mean((p - targets) ** 2)
def order(features, mode): return None
def pair(features, targets): return features, tf.reduce_sum(targets)
def vector(features, targets):
    w = tf.Variable(tf.zeros([4, 1]), name="w")
    return features @ w, (features @ w - targets) ** 2, keras.optimizers.SGD(0.1)
def nameless(features, targets):
    w = tf.Variable(tf.zeros([4, 1]), name="w")
    return features @ w, loss_of(features @ w, targets), None
def old(features, targets):
    w = tf.compat.v1.get_variable("w", [4, 1])
    loss = loss_of(features @ w, targets)
    return features @ w, loss, tf.compat.v1.train.AdamOptimizer(0.1).minimize(loss)
def other(features, targets):
    w = tf.Variable(tf.zeros([4, 1]), name="w")
    loss = loss_of(features @ w, targets)
    return features @ w, loss, minimize(loss * 2.0, "sgd")
def reused(features, targets):
    global outside
    if outside is None:
        outside = keras.layers.Dense(1)
    p = outside(features)
    return p, loss_of(p, targets), keras.optimizers.SGD(0.1)
before = tf.Variable(tf.zeros([4, 1]), name="before")
def foreign(features, targets):
    p = features @ before
    return p, loss_of(p, targets), keras.optimizers.SGD(0.1)
def growing(features, targets, mode):
    p = keras.layers.Dense(1)(features)
    if mode == "eval":
        p = keras.layers.Dense(1, name="calibration")(p)
    return p, loss_of(p, targets), keras.optimizers.SGD(0.1)
def noisy(features, targets):
    logits = keras.layers.Dense(1)(features) + keras.random.normal([])
    return logits, tf.reduce_mean(logits), keras.optimizers.SGD(0.1)
def branch(features, targets, mode, params):
    w = tf.Variable(tf.ones([4, 1]), name="w")
    p = features @ w
    if tf.reduce_sum(p) > params["cap"]:
        p = tf.zeros_like(p)
    loss = loss_of(p, targets)
    return p, loss, minimize(loss, "sgd")
""",
    "dataless": "def model(): pass\n",
    "modules": "import keras.losses as train_data, keras.metrics as eval_data\ndef model(): pass\n",
    "half": "def model(): pass\ndef train_data(): pass\n",
}


@pytest.fixture(scope="module", autouse=True)
def code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Directories on Python's path: the modules above, and those that the strategies are tested with."""
    directory = tmp_path_factory.mktemp("code")
    for name, text in CODE.items():
        (directory / f"forms_{name}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(directory))
        patch.syspath_prepend(str(Path(__file__).with_name("own_code")))
        yield
    for name in ("compiled", "outputs", "functions", "points", *(f"forms_{name}" for name in CODE)):
        sys.modules.pop(name, None)


def workload(name: str, **params: Any) -> Workload:
    return load_workload(Train(workload=name, params=params))


def test_an_evaluation_with_a_smaller_last_batch_equals_that_of_keras() -> None:
    form = workload("outputs:model")
    model = model_ops.build(form, small_config()).model
    ours = model_ops.evaluation(form, model, batch_size=32)()
    parts = [np.concatenate(part) for part in zip(*(tf.nest.flatten(batch) for batch in form.eval_data(32)), strict=True)]
    inputs, targets = tf.nest.pack_sequence_as(form.eval_data(32).element_spec, parts)
    theirs = model.evaluate(inputs, targets["targets"], 32, 0, targets["weights"], return_dict=True)
    for metric, value in ours.items():
        assert value == pytest.approx(theirs[metric], abs=1e-4)


def test_a_batchs_metrics_leave_no_trace_in_the_metrics_variables() -> None:
    form = workload("compiled:model")
    model = model_ops.build(form, small_config()).model
    inputs, targets = next(iter(form.eval_data(20)))
    outputs = model(inputs)
    first, again = form.metrics(targets, outputs), form.metrics(targets, outputs)
    assert {name: float(value) for name, value in first.items()} == {name: float(value) for name, value in again.items()}


def test_variables_are_found_again_by_name_and_hold_their_start_values() -> None:
    form = workload("functions:three")
    model = model_ops.build(form, small_config(4)).model
    names = [variable.name for variable in model.variables]
    assert names.count("kernel") == 2
    assert "seed_generator_state" in names
    moving = next(variable for variable in model.variables if variable.name == "moving_mean")
    np.testing.assert_array_equal(moving.value, np.zeros(8))  # the call that created it has not moved it
    inputs, _ = next(iter(form.train_data(Shard(4, seed=0))))
    first, again = model(inputs, training=False), model(inputs, training=False)
    np.testing.assert_array_equal(first["predictions"], again["predictions"])
    other = model_ops.build(workload("functions:three"), small_config(5)).model
    assert not np.array_equal(model.trainable_variables[0].numpy(), other.trainable_variables[0].numpy())


def test_given_values_take_the_variables_places() -> None:
    form = workload("functions:four", units=3)
    model = model_ops.build(form, small_config()).model
    inputs, _ = next(iter(form.train_data(Shard(4, seed=0))))
    trained = [tf.zeros_like(variable.value) for variable in model.trainable_variables]
    state = [variable.value for variable in model.non_trainable_variables]
    outputs, after = model.stateless_call(trained, state, inputs, training=True)
    np.testing.assert_array_equal(outputs["predictions"], np.zeros((4, 2)))
    seen = [variable.name for variable in model.non_trainable_variables].index("seen")
    assert float(after[seen]) == pytest.approx(0.1 * float(tf.reduce_mean(inputs[0])), abs=1e-6)
    assert float(state[seen]) == 0


def test_a_served_model_function_takes_only_features(tmp_path: Path) -> None:
    form = workload("functions:three")
    model = model_ops.build(form, small_config()).model
    model.export(str(tmp_path / "model"), format="tf_saved_model", verbose=False)
    features, targets = next(iter(form.eval_data(5)))[0]
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    served = loaded.serve(features)
    np.testing.assert_allclose(served, model((features, targets), training=False)["predictions"], atol=1e-6)


def test_python_control_flow_on_tensors_works_in_a_graph() -> None:
    form = workload("forms_functions:branch", cap=2.0)
    model = model_ops.build(form, small_config()).model
    run = tf.function(lambda features: model((features, tf.zeros([1, 1])))["predictions"][0, 0], autograph=False)
    assert [float(run(tf.constant([[x] * 4]))) for x in (0.25, 3.0)] == [1.0, 0.0]


def test_a_model_function_may_draw_by_keras_without_a_seed() -> None:
    train_a_step(workload("forms_functions:noisy"))


@pytest.mark.parametrize(
    "name,params,message",
    [
        ("forms_models:number", {}, "is int in .*forms_models.py; expected a workload class, a compiled Keras model"),
        ("forms_models:Own", {}, "is a class of Keras models; name a function that returns one of them, compiled"),
        ("forms_models:plain", {}, r"plain \(.*forms_models\.py:\d+\) requires 'units', which is not given\. Set train\.params\.units"),
        ("forms_models:plain", {"units": 1}, r"has no loss and optimizer; call model\.compile"),
        ("forms_models:plain", {"unts": 1}, r"train\.params\.unts: no function of forms_models:plain takes .*did you mean 'units'"),
        ("forms_models:plain", {"units": 1, "seed": 7}, "train.params.seed: the argument 'seed' .* is train.seed; set that"),
        ("forms_models:plain", {"units": 1, "params": {}}, "the argument 'params' .* is train.params; write its values there directly"),
        ("forms_models:nothing", {}, "returned NoneType; expected a compiled keras.Model"),
        ("forms_models:made", {"units": 1}, r"train\.params\.units: no function of forms_models:made takes an argument 'units'"),
        ("forms_models:nothing", {"units": 1}, "expected none, or a function that takes `params`"),
        ("forms_models:everything", {"units": 1}, "returned dict; expected a compiled keras.Model"),
        (
            "forms_models:looping",
            {},
            "Looping has a fit of its own, which would not be called: .* Move its work on a batch into train_step",
        ),
        (
            "forms_models:stateful",
            {},
            "the layer 'memory' is stateful: its state continues from batch to batch, .*; leave stateful=True out",
        ),
        ("forms_models:eager", {}, "run_eagerly=True; the trainer only runs graphs"),
        (
            "forms_slotted:Class",
            {},
            r"forms_slotted\.py has callbacks, which its class has no place for; give the class a method callbacks",
        ),
        ("forms_dataless:model", {}, "has no train_data and no eval_data. Add them: a function that returns"),
        ("forms_modules:model", {}, "has no train_data and no eval_data. Add them"),
        ("forms_half:model", {}, "has no eval_data. Add it"),
        ("forms_functions:order", {}, r"takes \(features, mode\); a model function takes \(features, targets\), .* or .*mode, params\)"),
        ("forms_functions:pair", {}, "returned 2 values; expected predictions, loss, train op"),
        ("forms_functions:pair", {"a": 1}, "no function of forms_functions:pair takes an argument 'a'"),
        ("forms_functions:vector", {}, r"a loss of float32 and shape \(2, 1\); expected one number"),
        ("forms_functions:nameless", {}, "returned NoneType as train op; expected as train op a Keras optimizer"),
        ("forms_functions:old", {}, r"minimizes with an optimizer of TensorFlow 1; expected .* minimize\(loss, optimizer\)"),
        ("forms_functions:other", {}, "the train op does not minimize the returned loss"),
        (
            "forms_functions:reused",
            {},
            r"created dense/bias, dense/kernel in its first call, but not dense/bias, dense/kernel in a later one",
        ),
        ("forms_functions:foreign", {}, "uses the variable 'before:0', which was created outside of it"),
        ("forms_functions:growing", {}, "creates the variable 'calibration/kernel', which its first call, in training mode, did not"),
    ],
)
def test_each_mistake_is_named(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        train_a_step(workload(name, **params))


def train_a_step(form: Workload) -> None:
    model = model_ops.build(form, small_config()).model
    inputs, _ = next(iter(form.train_data(Shard(2, seed=0))))
    for training in (True, False):
        tf.function(lambda: model(inputs, training=training), autograph=False)()  # noqa: B023 - called at once


def test_a_model_may_be_made_at_module_level() -> None:
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    plain.compile("sgd", "mse")
    importlib.import_module("forms_models").ready = plain  # type: ignore[attr-defined]
    assert workload("forms_models:ready").model() is plain


@pytest.mark.parametrize("name, kind", [("function", "model function"), ("Class", "workload class")])
def test_class_weight_is_refused_if_nothing_would_use_it(name: str, kind: str) -> None:
    with pytest.raises(
        WorkloadError, match=rf"forms_weighing\.py has a class_weight, which only applies to .* is a {kind}; give sample weights"
    ):
        workload(f"forms_weighing:{name}")


def callbacks_of(name: str, **params: Any) -> list[Any]:
    form: Any = workload(name, **params)
    return [*form.callbacks()]


def test_a_modules_callbacks_are_made_with_its_params() -> None:
    assert [callback.patience for callback in callbacks_of("forms_called:model", patience=5)] == [5]
    assert [callback.patience for callback in callbacks_of("forms_called:Class")] == [3]
    assert callbacks_of("forms_called:model")[0] is not callbacks_of("forms_called:model")[0]


def test_a_single_callback_counts_as_a_list() -> None:
    assert len(callbacks_of("forms_unlisted:model")) == 1


@pytest.mark.parametrize("name", ["model", "function"])
def test_a_module_that_is_imported_by_an_optional_name_defines_nothing(name: str) -> None:
    form: Any = workload(f"forms_imported:{name}")
    model = model_ops.build(form, small_config()).model
    assert model_ops.metric_names(form, model) == ()
    assert form.callbacks() == []
    assert not hasattr(workload("forms_imported:Class"), "callbacks")


@pytest.mark.parametrize(
    "kind, message",
    [
        ("none", r"callbacks \(.*forms_wrong\.py:\d+\) gives NoneType; expected a list of Keras callbacks"),
        ("class", "number 0 of its list is the class EarlyStopping; expected an object"),
        ("number", "number 1 of its list is int; expected an object"),
    ],
)
def test_wrong_callbacks_are_named(kind: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        callbacks_of("forms_wrong:model", kind=kind)
