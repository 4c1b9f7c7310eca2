"""The forms of `train_data` and `eval_data`, and each way in which they can be wrong."""

import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.workloads.test_pipeline import examples, generated
from trainer.workloads import in_memory
from trainer.workloads.class_weight import ClassWeight
from trainer.workloads.errors import WorkloadError
from trainer.workloads.protocol import Shard
from trainer.workloads.user_call import CallArguments
from trainer.workloads.user_data import UserData

CALL = CallArguments("mine:model", {"rows": 6}, "synthetic", 3)


def data(source: Any) -> UserData:
    return UserData(source, CALL, "train_data")


def test_functions_take_the_arguments_that_they_name_and_values_work_too() -> None:
    def arrays(rows: int, offset: int = 0, /, seed: int = 0, noise: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
        return np.full((rows, 2), offset + seed + noise), np.arange(rows)

    inputs, targets = data(arrays).first(100)
    np.testing.assert_array_equal(inputs, np.full((6, 2), 3.5, np.float32))
    assert inputs.dtype == tf.float32  # what Keras computes with
    assert targets.dtype == tf.int64

    def forwarding(rows: int, /, **params: int) -> tuple[np.ndarray, np.ndarray]:
        return arrays(rows, **params)  # `rows` only once

    assert data(forwarding).count() == 6
    inputs, _ = data(arrays(4, 0, 1)).first(100)
    assert inputs.shape == (4, 2)


def test_nested_arrays_are_batched_together() -> None:
    numbers = np.arange(20)
    source = ({"a": numbers, "b": numbers[:, np.newaxis] * 2}, (numbers * 3, [float(n) for n in range(20)]))
    for inputs, (three, one) in islice(data(source).batches(Shard(4, seed=0)), 5):
        np.testing.assert_array_equal(inputs["b"][:, 0], inputs["a"] * 2)
        np.testing.assert_array_equal(three, inputs["a"] * 3)
        np.testing.assert_array_equal(one, tf.cast(inputs["a"], tf.float32))


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_sample_weights_travel_with_the_targets(kind: str) -> None:
    arrays = (np.arange(10), np.arange(10) * 2, np.arange(10) * 0.5)
    weighted = data(arrays if kind == "arrays" else tf.data.Dataset.from_tensor_slices(tuple(a.astype(np.float32) for a in arrays)))
    inputs, targets = next(iter(weighted.batches(Shard(5, seed=0))))
    np.testing.assert_allclose(targets["targets"], tf.cast(inputs, tf.float32) * 2)
    np.testing.assert_allclose(targets["weights"], tf.cast(inputs, tf.float32) * 0.5)


@pytest.mark.parametrize(
    "source,message",
    [
        (
            lambda: None,
            r"train_data of mine:model: <lambda> \(.*test_user_data\.py:\d+\) gives NoneType; expected arrays \(inputs, targets\)",
        ),
        (lambda: (np.zeros(3),), "gives 1 parts; expected arrays"),
        (lambda: (np.zeros(3), np.zeros(4)), "3 inputs and 4 targets: expected as many of the one as of the other"),
        (lambda: (np.zeros((0, 2)), np.zeros(0)), "0 inputs and 0 targets"),
        (lambda: (np.array([[1], [1, 2]], dtype=object), np.zeros(2)), "rows of different length, or Python objects"),
        (lambda: ([[1], [1, 2]], np.zeros(2)), "rows of different length, or Python objects"),
        (lambda: (np.array(["a", None], dtype=object), np.zeros(2)), "Python objects; expected numbers or strings"),
        (lambda: (np.zeros(2), 3), "a single value"),
        (lambda: (tf.constant("a"), np.zeros(1)), "a single value"),
        (lambda: tf.data.Dataset.range(3), "gives a Dataset of TensorSpec.*; expected"),
        (lambda: ({}, np.zeros(3)), "no inputs and 3 targets: expected as many"),
        (lambda: ({}, {}), "no inputs and no targets: expected as many"),
        (lambda: (np.zeros(2), np.zeros(2, "datetime64[D]")), r"gives an array of datetime64\[D\]; expected numbers or strings"),
        (lambda missing, /: missing, r"requires 'missing', which is not given"),
        (lambda missing: missing, r"requires 'missing', which is not given\. Set train\.params\.missing"),
    ],
    ids=[
        "none",
        "one",
        "lengths",
        "empty",
        "objects",
        "ragged",
        "no string",
        "number",
        "string",
        "spec",
        "no inputs",
        "nothing",
        "times",
        "position",
        "argument",
    ],
)
def test_each_mistake_is_named(source: Any, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        data(source).batches(Shard(2, seed=0))
    with pytest.raises(WorkloadError, match=message):
        data(source).count()


TEXTS = ["a", "bb", "ä\U0001f600", "c" * 40, "", "f"]


@pytest.mark.parametrize(
    "form",
    [
        np.array,
        lambda texts: np.array(texts, dtype=object),
        lambda texts: np.array([text.encode() for text in texts], dtype=object),
        tf.constant,
        list,
    ],
    ids=["numpy", "objects", "bytes", "tensor", "list"],
)
def test_strings_are_examples_in_each_form(form: Callable[[list[str]], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_memory, "PART_BYTES", 60)  # of more than one part
    user_data = data(lambda: (form(TEXTS), np.arange(6)))

    @tf.function(autograph=False)
    def on_a_worker(start: tf.Tensor) -> tf.data.Dataset:
        return user_data.batches(Shard(6, seed=0, start=start))

    worker = on_a_worker.get_concrete_function(tf.TensorSpec([], tf.int64))
    for drawn in (user_data.batches(Shard(6, seed=0)), user_data.once(6), worker(tf.constant(0, tf.int64))):
        inputs, targets = next(iter(drawn))
        assert [inputs.numpy()[n].decode() for n in np.argsort(targets)] == TEXTS


def larger_in_a_graph() -> tf.data.Dataset:
    """Return a Dataset that would take 2.2 GB if it were made in a graph."""
    if not tf.executing_eagerly():
        tf.make_tensor_proto(np.broadcast_to(np.uint8(0), 2_200_000_000))  # as a constant does, here of one byte
    return examples(3)


@pytest.mark.parametrize(
    "kind,message",
    [
        ("generator", r"workers of parameter_server run no Python\. Return arrays, write the examples to TFRecord files"),
        ("value", "only exists in the chief's memory.*Make it a function that returns the Dataset"),
        ("too large", r"an array of 2 GB or more.*Return the arrays instead of the Dataset, or read files"),
    ],
)
def test_data_that_workers_without_python_cannot_make_is_refused(kind: str, message: str) -> None:
    user_data = data({"generator": generated, "value": examples(5), "too large": larger_in_a_graph}[kind])

    @tf.function(autograph=False)
    def on_a_worker(index: tf.Tensor) -> tf.data.Dataset:
        return user_data.batches(Shard(2, seed=0, index=index, count=2))

    with pytest.raises(WorkloadError, match=message):
        on_a_worker.get_concrete_function(tf.TensorSpec([], tf.int64))


def test_a_dataset_is_made_in_a_graph_for_workers() -> None:
    user_data = data(lambda: examples(10))

    @tf.function(autograph=False)
    def on_a_worker(index: tf.Tensor, start: tf.Tensor) -> tf.data.Dataset:
        return user_data.batches(Shard(5, seed=0, index=index, count=2, start=start))

    traced = on_a_worker.get_concrete_function(tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int64))
    drawn = [next(iter(traced(tf.constant(i, tf.int64), tf.constant(0, tf.int64))))[1].numpy() for i in range(2)]
    assert sorted(np.concatenate(drawn)) == [n * 3 for n in range(10)]


def test_a_dataset_of_batches_is_taken_apart_and_that_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    batch = next(iter(data(lambda: examples(6).batch(2)).batches(Shard(3, seed=0))))
    assert tf.nest.flatten(batch)[0].shape[0] == 3
    assert capsys.readouterr().out.startswith("train_data of mine:model: <lambda>")
    evaluated = UserData(lambda: examples(6).batch(2), CALL, "eval_data")
    assert tf.nest.flatten(next(iter(evaluated.once(4))))[0].shape[0] == 4
    assert capsys.readouterr().out.startswith("eval_data of mine:model: <lambda>")


def test_a_file_of_cached_batches_is_not_used_and_that_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cache"
    data(lambda: examples(6).batch(2).cache(str(file))).first(3)
    assert "Put .cache(file) before .shuffle and .batch" in capsys.readouterr().out
    assert not any(tmp_path.iterdir())


def random_values(inputs: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return inputs + tf.random.uniform([1]), targets


@pytest.mark.parametrize(
    "made,start,difference",
    [
        (lambda: examples(12), 7, ""),
        (lambda: examples(12).shuffle(12).map(lambda *parts: parts), 7, ""),  # cached after its first order
        (lambda: examples(12).map(random_values).cache().shuffle(12).batch(4), 7, ""),
        (lambda: examples(12).shuffle(12, reshuffle_each_iteration=False).map(random_values), 7, "random values"),
        (lambda: examples(12).shuffle(12).map(random_values).batch(4), 2, "random values"),
        (lambda: examples(12).shuffle(12).map(random_values).batch(4).prefetch(1), 7, ".shuffle out"),
        (lambda: examples(12).shuffle(12).batch(4).map(random_values), 7, "assert_cardinality"),
        (lambda: examples(12).repeat().map(lambda *parts: parts), 7, ".repeat() last"),
    ],
    ids=["plain", "shuffled", "cached", "one order", "first epoch", "orders", "unknown number", "endless"],
)
def test_a_resume_reports_what_differs_from_an_uninterrupted_run(
    made: Callable[[], tf.data.Dataset], start: int, difference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def targets_from(start: int) -> list[list[int]]:
        keras.utils.set_random_seed(CALL.seed)
        drawn = data(made).batches(Shard(2, seed=0, start=start))
        return [targets.numpy().tolist() for _, targets in islice(drawn, 14 - start)]

    whole = targets_from(0)
    assert "does not continue" not in capsys.readouterr().out
    same = targets_from(start) == whole[start:]
    out = capsys.readouterr().out
    assert same == (difference in ("", "random values"))
    assert ("does not continue" in out) == (not same)
    assert difference in out


@pytest.mark.parametrize("seed,is_reported", [(0, True), (1, False)])
def test_held_out_rows_that_are_training_rows_are_reported(seed: int, is_reported: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def drawn(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        generator = np.random.default_rng(random.getrandbits(30) + seed)
        return generator.normal(size=(count, 4)), np.zeros(count)

    training = data(lambda: drawn(100))
    held_out = UserData(lambda: drawn(20, seed), CALL, "eval_data", training=training)
    training.first(1)
    held_out.first(1)
    assert ("begins with the rows of train_data" in capsys.readouterr().out) == is_reported


NUMBERS = np.arange(40)
SPLITS: dict[str, Callable[[], Any]] = {
    "numpy": lambda: np.random.permutation(NUMBERS),  # noqa: NPY002 - what users and scikit-learn draw from
    "python": lambda: np.array(random.sample(NUMBERS.tolist(), 40)),
    "tensorflow": lambda: tf.random.shuffle(NUMBERS),
    "keras": lambda: keras.random.shuffle(NUMBERS),
}


@pytest.mark.parametrize("kind", SPLITS)
def test_a_split_in_two_functions_is_the_same_in_each_task_and_attempt(kind: str) -> None:
    def half(part: slice, draws_before: int = 0) -> list[int]:
        def rows() -> tuple[Any, Any]:
            drawn = np.asarray(SPLITS[kind]())[part]
            return drawn, drawn

        keras.utils.set_random_seed(1)
        for _ in range(draws_before):
            SPLITS[kind]()
        found = data(rows)
        found.first(1)  # the second call of some functions makes the batches
        return sorted(next(iter(found.once(40)))[0].numpy().tolist())

    first, second = slice(0, 20), slice(20, 40)
    assert sorted(half(first) + half(second, draws_before=2)) == NUMBERS.tolist()
    assert half(first) == half(first, draws_before=1)


@pytest.mark.parametrize("kind", SPLITS)
def test_random_numbers_of_training_do_not_depend_on_the_data_functions(kind: str) -> None:
    def drawn(between: Callable[[], Any]) -> list[list[int]]:
        keras.utils.set_random_seed(1)
        before = SPLITS[kind]()
        between()
        return [np.asarray(numbers).tolist() for numbers in (before, SPLITS[kind]())]

    assert drawn(lambda: None) == drawn(lambda: data(lambda: (SPLITS[kind](), NUMBERS)).first(1))


def test_a_split_of_a_dataset_is_the_same_on_workers_of_parameter_servers() -> None:
    def numbers() -> tf.data.Dataset:
        return examples(40).shuffle(40, reshuffle_each_iteration=False)

    keras.utils.set_random_seed(CALL.seed)
    trained = data(lambda: numbers().take(20))

    @tf.function(autograph=False)
    def on_a_worker() -> tf.data.Dataset:
        return trained.batches(Shard(20, seed=0))

    _, here = next(iter(trained.batches(Shard(20, seed=0))))
    _, there = next(iter(on_a_worker()))
    _, held_out = next(iter(data(lambda: numbers().skip(20)).once(20)))
    assert sorted(here.numpy()) == sorted(there.numpy())
    assert sorted([*there.numpy(), *held_out.numpy()]) == [3 * number for number in range(40)]


ONE_HOT = np.eye(3, dtype=np.float32)[[0, 2, 1, 2]]
WEIGHTS = {0: 1, 2: 5.0}


@pytest.mark.parametrize(
    "targets", [np.array([0, 2, 1, 2]), np.array([[0.0], [2.0], [1.0], [2.0]]), ONE_HOT], ids=["integers", "a column", "one-hot"]
)
@pytest.mark.parametrize("kind", ["arrays", "dataset"])
@pytest.mark.parametrize("sampled", [False, True])
def test_class_weights_multiply_sample_weights(kind: str, targets: np.ndarray, sampled: bool) -> None:
    arrays = (np.arange(4.0), targets, np.array([1, 1, 1, 0.5], np.float32))[: 3 if sampled else 2]
    source = arrays if kind == "arrays" else tf.data.Dataset.from_tensor_slices(arrays)
    weighed = UserData(source, CALL, "train_data", ClassWeight(WEIGHTS, CALL))
    inputs, weighted_targets = next(iter(weighed.batches(Shard(4, seed=0))))
    order = np.argsort(inputs.numpy())
    # A class that is not named weighs 1.
    np.testing.assert_allclose(weighted_targets["weights"].numpy()[order], [1, 5, 1, 2.5 if sampled else 5])
    assert weighted_targets["weights"].dtype == tf.float32


@pytest.mark.parametrize(
    "weights,targets,message",
    [
        ([1, 2], np.zeros(3), r"class_weight of mine:model is \[1, 2\]; expected a dict of a number for each class"),
        ({"cat": 1.0}, np.zeros(3), "expected a dict of a number for each class"),
        ({0: -1.0}, np.zeros(3), "expected a dict of a number for each class"),
        (WEIGHTS, np.zeros((3, 2, 2)), r"and the shape \(2, 2\); expected an integer or a one-hot row an example"),
        (WEIGHTS, np.array(["a", "b", "c"]), r"a target has the type string and the shape \(\); expected"),
        (WEIGHTS, {"a": np.zeros(3), "b": np.zeros(3)}, "the targets are those of several outputs"),
    ],
)
@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_class_weights_without_a_meaning_are_refused(kind: str, weights: Any, targets: Any, message: str) -> None:
    source = (np.zeros(3), targets) if kind == "arrays" else tf.data.Dataset.from_tensor_slices((np.zeros(3), targets))
    with pytest.raises(WorkloadError, match=message):
        UserData(source, CALL, "train_data", ClassWeight(weights, CALL)).batches(Shard(1, seed=0))


def test_sample_weights_of_another_length_are_refused_beside_class_weights() -> None:
    with pytest.raises(WorkloadError, match="3 inputs and 3, 2 targets: expected as many"):
        UserData((np.zeros(3), np.zeros(3), np.zeros(2)), CALL, "train_data", ClassWeight(WEIGHTS, CALL)).count()


def test_class_weights_of_targets_of_unknown_rank_are_refused() -> None:
    source = tf.data.Dataset.from_generator(lambda: [(0.0, 1)], output_types=(tf.float32, tf.int64))
    with pytest.raises(WorkloadError, match="a target has the type int64 and the shape <unknown>; expected"):
        UserData(source, CALL, "train_data", ClassWeight(WEIGHTS, CALL)).count()


def test_a_number_that_is_no_class_weighs_one() -> None:
    arrays = (np.zeros(3), np.array([np.nan, 2, 3]))
    _, targets = UserData(arrays, CALL, "train_data", ClassWeight({2: 5.0, 0: 7.0}, CALL)).first(3)
    np.testing.assert_array_equal(targets["weights"], [1, 5, 1])


def test_examples_with_weights_keep_them_after_a_cache_of_the_users() -> None:
    def weighted(inputs: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return inputs, targets, tf.constant(2.0)

    cached = data(lambda: examples(6).map(weighted).batch(2).cache())
    held_out = UserData(lambda: examples(6).map(weighted).batch(2).cache(), CALL, "eval_data")
    for batch in (next(iter(cached.batches(Shard(3, seed=0)))), next(iter(held_out.once(3)))):
        np.testing.assert_array_equal(batch[1]["weights"], [2.0] * 3)
