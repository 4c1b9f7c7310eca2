"""The layers of a model whose tables are sharded, and what a model may do with these layers."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.embeddings import initial_rows, layers
from trainer.settings import Embeddings
from trainer.workloads.errors import WorkloadError


def two_layers(**options: Any) -> keras.Model:
    ids = keras.Input([2], dtype="int64")
    rows = [keras.layers.Embedding(50, 3, name="small")(ids), keras.layers.Embedding(5000, 3, name="large", **options)(ids)]
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(keras.layers.Concatenate()(rows))))


def sharded_names(model: keras.Model) -> list[str]:
    return [table.name for table in layers.tables(model)]


@pytest.mark.parametrize(
    "settings, sharded",
    [
        ({}, []),
        ({"min_rows": 5000}, ["large"]),
        ({"min_rows": 5001}, []),
        ({"min_rows": 1}, ["small", "large"]),
        ({"sharded": ["small"]}, ["small"]),
        ({"min_rows": 1, "whole": ["small"]}, ["large"]),
    ],
)
def test_the_tables_of_large_layers_and_of_named_ones_are_sharded(settings: dict[str, Any], sharded: list[str]) -> None:
    with layers.sharding(Embeddings.model_validate(settings)):
        model = two_layers()
    assert sharded_names(model) == sharded
    assert {f"{name}/embeddings" for name in ("small", "large") if name not in sharded} == {
        variable.path for variable in model.trainable_variables if "embeddings" in variable.path
    }


def test_layers_of_many_mebibytes_are_large() -> None:
    with layers.sharding(Embeddings()):
        ids = keras.Input([], dtype="int64")
        model = keras.Model(ids, keras.layers.Embedding(20_000, 1024, name="deep")(ids))
    assert sharded_names(model) == ["deep"]


def test_a_model_that_is_built_later_keeps_its_tables() -> None:
    with layers.sharding(Embeddings(min_rows=1)):
        two_layers()
    assert sharded_names(two_layers()) == []
    weights = keras.layers.Embedding(4, 2, weights=np.ones((4, 2), np.float32)).get_weights()
    assert len(weights) == 1


def test_a_name_that_no_layer_has_is_refused_with_the_names_of_the_layers() -> None:
    with (
        pytest.raises(WorkloadError, match=r"train\.embeddings names user, and the model has no such Embedding layer; it has large, small"),
        layers.sharding(Embeddings(sharded=["user"])),
    ):
        two_layers()


class Doubling(keras.layers.Embedding):
    """A layer that does more with its matrix than look up rows."""

    def call(self, inputs: Any) -> Any:
        return super().call(inputs) * 2


@pytest.mark.parametrize(
    "layer, reason",
    [
        (lambda: keras.layers.Embedding(5000, 3, embeddings_regularizer="l2", name="it"), "embeddings_regularizer"),
        (lambda: keras.layers.Embedding(5000, 3, embeddings_constraint="non_neg", name="it"), "embeddings_constraint"),
        (lambda: keras.layers.Embedding(5000, 3, lora_rank=2, name="it"), "lora_rank"),
        (lambda: Doubling(5000, 3, name="it"), "Doubling has `call` of its own"),
    ],
)
def test_a_layer_that_needs_the_whole_matrix_is_refused_with_a_remedy(layer: Any, reason: str) -> None:
    with pytest.raises(WorkloadError) as raised, layers.sharding(Embeddings(min_rows=1000)):
        layer()(keras.Input([], dtype="int64"))
    assert reason in str(raised.value)
    assert "train.embeddings.whole: [it]" in str(raised.value)


def test_using_or_saving_the_matrix_is_an_error(tmp_path: Path) -> None:
    with layers.sharding(Embeddings(min_rows=1000)):
        model = two_layers()
    with pytest.raises(WorkloadError, match="uses the whole matrix of its layer 'large'"):
        tf.matmul(tf.ones([1, 3]), model.get_layer("large").embeddings, transpose_b=True)
    with pytest.raises(WorkloadError, match="the layer 'large' cannot be written to a file of its model"):
        model.save_weights(tmp_path / "model.weights.h5")


@pytest.mark.parametrize("ids", [np.array([[1, 2]]), np.array([[1.0, 2.0]], np.float32)])
def test_rows_have_the_shape_and_the_dtype_that_keras_gives_them(ids: Any) -> None:
    with layers.sharding(Embeddings(min_rows=1)):
        layer = keras.layers.Embedding(9, 3, dtype="mixed_bfloat16")
        layer.build()
    whole = keras.layers.Embedding(9, 3, dtype="mixed_bfloat16")
    assert (layer(ids).shape, layer(ids).dtype) == (whole(ids).shape, whole(ids).dtype)


def test_ragged_ids_have_ragged_rows() -> None:
    with layers.sharding(Embeddings(min_rows=1)):
        layer = keras.layers.Embedding(9, 3)
        layer.build()
    rows = layer.call(tf.ragged.constant([[1, 2], [3]]))
    assert rows.shape.as_list() == [2, None, 3]
    assert layer.call(tf.sparse.from_dense([[1, 0], [0, 3]])).shape == [2, 2, 3]


def test_calls_are_recorded_in_order_and_get_rows_in_the_same_order() -> None:
    with layers.sharding(Embeddings(min_rows=1)):
        one, other = (keras.layers.Embedding(9, 3, name=name) for name in ("one", "other"))
        for layer in (one, other):
            layer.build()

    @tf.function(autograph=False)
    def step(ids: tf.Tensor) -> tf.Tensor:
        def run() -> tf.Tensor:
            return tf.concat([one.call(ids), other.call(ids + 1), one.call(ids + 2)], 1)

        calls = layers.record_calls(run)
        assert [call.table.name for call in calls] == ["one", "other", "one"]
        with layers.looking_up(layers.replay(calls, [tf.ones([2, 3]) * number for number in (1.0, 2.0, 3.0)])):
            return run()

    np.testing.assert_array_equal(step(tf.constant([1, 2]))[0], [1, 1, 1, 2, 2, 2, 3, 3, 3])


def test_ids_that_depend_on_rows_or_come_from_a_loop_are_refused() -> None:
    with layers.sharding(Embeddings(min_rows=1)):
        layer = keras.layers.Embedding(9, 3, name="again")
        layer.build()

    def dependent(ids: tf.Tensor) -> None:
        layers.record_calls(lambda: layer.call(tf.cast(tf.argmax(layer.call(ids), -1), tf.int32)))

    def looped(ids: tf.Tensor) -> None:
        layers.record_calls(lambda: tf.map_fn(layer.call, ids, fn_output_signature=tf.float32))

    spec = tf.TensorSpec([4], tf.int32)
    with pytest.raises(WorkloadError, match="computed from rows of another large layer"):
        tf.function(dependent, autograph=False).get_concrete_function(spec)
    with pytest.raises(WorkloadError, match="in a loop or a branch"):
        tf.function(looped, autograph=False).get_concrete_function(spec)


def test_ids_that_the_model_draws_at_random_are_refused() -> None:
    with layers.sharding(Embeddings(min_rows=1)):
        layer = keras.layers.Embedding(9, 3, name="drawn")
        layer.build()

    def drawn(ids: tf.Tensor) -> None:
        layers.record_calls(lambda: layer.call(ids + tf.random.uniform([4], maxval=3, dtype=tf.int32)))

    with pytest.raises(WorkloadError, match="drawn at random in the model"):
        tf.function(drawn, autograph=False).get_concrete_function(tf.TensorSpec([4], tf.int32))


@pytest.mark.parametrize("positional", [True, False])
def test_the_initial_rows_of_a_layer_are_used(*, positional: bool) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    for sharded in (True, False):
        with layers.sharding(Embeddings(sharded=["it"] if sharded else [])):
            arguments = (3, 2, "uniform", None, None, False, rows) if positional else (3, 2)
            layer = keras.layers.Embedding(*arguments, name="it", **({} if positional else {"weights": [rows]}))
            layer.build()
        actual = initial_rows.given_rows(layer._embeddings) if sharded else layer.get_weights()[0]
        np.testing.assert_array_equal(actual, rows)


def test_a_layer_that_was_created_before_the_model_is_refused_with_a_remedy() -> None:
    early = keras.layers.Embedding(50, 3, name="early")
    settings = Embeddings(min_rows=40)
    with layers.sharding(settings):
        ids = keras.Input([], dtype="int64")
        model = keras.Model(ids, early(ids))
    with pytest.raises(WorkloadError, match="make it in the model's function"):
        layers.check_all_sharded(model, settings)


def test_reading_or_replacing_all_weights_of_a_model_with_tables_is_an_error() -> None:
    with layers.sharding(Embeddings(min_rows=1000)):
        model = two_layers()
    layers.refuse_all_weights(model)
    for use in (model.get_weights, lambda: model.set_weights([])):
        with pytest.raises(WorkloadError, match="restore_best_weights"):
            use()
    with pytest.raises(WorkloadError, match="changed as a whole"):
        model.get_layer("large").enable_lora(2)
