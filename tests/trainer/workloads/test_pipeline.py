"""Batches from a user's Dataset: every example once an epoch among all readers, cached, resumed exactly if its size is known."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.workloads import pipeline, user_data
from trainer.workloads.errors import WorkloadError
from trainer.workloads.protocol import Shard
from trainer.workloads.user_call import CallArguments


def examples(count: int) -> tf.data.Dataset:
    """Return inputs that encode their own number, and targets that must stay with them."""
    return tf.data.Dataset.range(count).map(lambda number: (tf.cast(number, tf.float32)[tf.newaxis], number * 3))


def numbers(dataset: tf.data.Dataset, shard: Shard, batches: int) -> np.ndarray:
    drawn = []
    for inputs, targets in islice(pipeline.batches(dataset, pipeline.inspect(dataset, "train_data"), shard), batches):
        assert inputs.shape == (shard.batch_size, 1)
        np.testing.assert_array_equal(targets.numpy(), inputs[:, 0].numpy().astype(int) * 3)
        drawn.append(inputs[:, 0].numpy().astype(int))
    return np.array(drawn)


@pytest.mark.parametrize("readers", [1, 3])
def test_readers_together_see_each_example_once_an_epoch(readers: int) -> None:
    epochs = [numbers(examples(30), Shard(5, seed=1, index=i, count=readers), 12 // readers) for i in range(readers)]
    first = np.concatenate([drawn[: 6 // readers].ravel() for drawn in epochs])
    second = np.concatenate([drawn[6 // readers :].ravel() for drawn in epochs])
    assert sorted(first) == sorted(second) == list(range(30))
    assert list(first) != list(second)
    assert list(first) != sorted(first)


def test_same_seed_gives_the_same_stream_and_another_seed_another() -> None:
    first = numbers(examples(50), Shard(10, seed=7), 10)
    np.testing.assert_array_equal(first, numbers(examples(50), Shard(10, seed=7), 10))
    assert (first != numbers(examples(50), Shard(10, seed=8), 10)).mean() > 0.8


@pytest.fixture(scope="module")
def whole() -> np.ndarray:
    """Return the batches of the second of two readers."""
    return numbers(examples(31), Shard(3, seed=2, index=1, count=2), 20)


@pytest.mark.parametrize("start", [1, 4, 5, 13])
def test_a_stream_started_later_continues_exactly(whole: np.ndarray, start: int) -> None:
    resumed = numbers(examples(31), Shard(3, seed=2, index=1, count=2, start=start), 7)
    np.testing.assert_array_equal(resumed, whole[start : start + 7])


def test_a_resumed_stream_of_unknown_size_starts_with_another_order() -> None:
    unknown = examples(40).filter(lambda inputs, _: inputs[0] >= 0)
    assert pipeline.inspect(unknown, "train_data").count is None
    whole = numbers(unknown, Shard(5, seed=2), 16)
    assert sorted(whole[:8].ravel()) == list(range(40))
    resumed = numbers(unknown, Shard(5, seed=2, start=4), 8)
    assert sorted(resumed.ravel()) == list(range(40))
    assert list(resumed.ravel()) != list(whole[:8].ravel())


def test_endless_examples_are_shuffled_and_batched() -> None:
    endless = examples(20).repeat()
    properties = pipeline.inspect(endless, "train_data")
    assert properties.endless
    assert not properties.may_cache
    assert numbers(endless, Shard(5, seed=2), 6).shape == (6, 5)
    with pytest.raises(WorkloadError, match=r"never end; add \.take"):
        pipeline.once(endless, properties, 5)


def noting(read: list[int]) -> Callable[[tf.Tensor, tf.Tensor], Any]:
    """Return a function for `map` that adds the number of each example to `read`."""

    def seen(number: np.ndarray) -> np.ndarray:
        read.append(int(number[0]))
        return number

    return lambda inputs, targets: (tf.ensure_shape(tf.numpy_function(seen, [inputs], tf.float32), [1]), targets)


def test_data_that_fits_in_memory_is_read_once() -> None:
    read: list[int] = []
    noted = examples(12).map(noting(read))
    properties = replace(pipeline.inspect(noted, "train_data"), random=False)  # as if it noted by an operation of TensorFlow's
    assert (properties.python, properties.may_cache, properties.buffer) == (True, True, 12)
    assert len(list(islice(pipeline.batches(noted, properties, Shard(4, seed=0)), 15))) == 15
    assert sorted(read) == list(range(12))


CACHED: dict[str, Callable[[tf.data.Dataset], tf.data.Dataset]] = {
    "batches": lambda noted: noted.batch(4).cache(),
    "batches in an order": lambda noted: noted.shuffle(12).batch(4).cache().shuffle(3).repeat().prefetch(1),
    "an order": lambda noted: noted.shuffle(12).cache().batch(4),
    "both": lambda noted: noted.cache().shuffle(12).batch(4).cache(),
    "changed batches": lambda noted: noted.batch(4).map(lambda *batch: batch).cache().prefetch(1),
}


@pytest.mark.parametrize("kind", CACHED)
def test_a_cache_of_the_users_is_kept(kind: str) -> None:
    read: list[int] = []
    cached = CACHED[kind](examples(12).map(noting(read)))
    dataset = pipeline.examples_of(cached)
    properties = pipeline.inspect(dataset, "train_data")
    assert properties.count in {12, None}
    read.clear()
    assert len(list(islice(pipeline.batches(dataset, properties, Shard(4, seed=0)), 15))) == 15
    assert sorted(read) == list(range(12))
    assert not properties.random


def test_a_file_of_cached_batches_is_left_out(tmp_path: Path) -> None:
    file, other = str(tmp_path / "cache"), str(tmp_path / "other")
    assert pipeline.drops_file_cache(examples(12).batch(4).cache(file))
    assert not pipeline.drops_file_cache(examples(12).cache(file).batch(4))
    assert not pipeline.drops_file_cache(examples(12).cache(file).batch(4).cache(other))


def noise(_: Any) -> np.ndarray:
    return np.random.default_rng().random(1, np.float32)


def of_layer() -> Callable[[tf.Tensor], Any]:
    layer = keras.layers.GaussianNoise(1.0)
    return lambda inputs: layer(inputs, training=True)


def of_variable() -> Callable[[tf.Tensor], tf.Tensor]:
    count = tf.Variable(0.0)
    return lambda inputs: inputs + 100 * count.assign_add(1.0)


DRAWN: dict[str, Callable[[], Callable[[tf.Tensor], Any]]] = {
    "uniform": lambda: lambda inputs: inputs + tf.random.uniform([1]),
    "truncated": lambda: lambda inputs: inputs + tf.random.truncated_normal([1]),
    "python": lambda: lambda inputs: tf.py_function(noise, [inputs], tf.float32),
    "numpy": lambda: lambda inputs: tf.numpy_function(noise, [inputs], tf.float32),
    "stateless numpy": lambda: lambda inputs: tf.numpy_function(noise, [inputs], tf.float32, stateful=False),
    "generator": lambda: lambda inputs: inputs + tf.random.get_global_generator().truncated_normal([1]),
    "layer": of_layer,
    "branch in a loop": lambda: (
        lambda inputs: tf.map_fn(lambda one: tf.cond(one >= 0, lambda: one + tf.random.gamma([], 1.0), lambda: one), inputs)
    ),
    "variable": of_variable,
}


@pytest.mark.parametrize("kind", DRAWN)
def test_examples_with_random_values_are_drawn_again_each_epoch(kind: str) -> None:
    draw = DRAWN[kind]()
    noisy = examples(12).map(lambda inputs, targets: (tf.ensure_shape(draw(inputs), [1]), targets))
    properties = pipeline.inspect(noisy, "train_data")
    assert properties.random
    assert not properties.may_cache
    epochs = [inputs.numpy() for inputs, _ in islice(pipeline.batches(noisy, properties, Shard(12, seed=0)), 2)]
    assert not np.isin(epochs[0], epochs[1]).any()


RANDOM_SETS = {
    "numbers": lambda: tf.data.Dataset.random(seed=1, rerandomize_each_iteration=True).take(4).map(with_target),
    "generator": lambda: generated().apply(tf.data.experimental.assert_cardinality(10)),
    "captured": lambda: noisy_batches(examples(12).map(lambda inputs, targets: (inputs + tf.random.uniform([1]), targets))),
}


def noisy_batches(noisy: tf.data.Dataset) -> tf.data.Dataset:
    return tf.data.Dataset.range(3).flat_map(lambda _: noisy).apply(tf.data.experimental.assert_cardinality(36))


@pytest.mark.parametrize("kind", RANDOM_SETS)
def test_datasets_that_may_give_other_examples_are_not_cached(kind: str) -> None:
    assert not pipeline.inspect(RANDOM_SETS[kind](), "train_data").may_cache


def with_target(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.cast(number, tf.float32)[tf.newaxis], number


def looked_up(numbers: tf.data.Dataset) -> tf.data.Dataset:
    table = keras.layers.IntegerLookup(vocabulary=list(range(12)))
    return numbers.map(lambda inputs, targets: (inputs, table(targets)))


REPEATED_SETS = {
    "numbers": lambda: tf.data.Dataset.random(seed=1).take(4).map(with_target),
    "numbered": lambda: examples(12).enumerate().map(lambda _, example: example),
    "captured": lambda: noisy_batches(examples(12)),
    "of a table": lambda: looked_up(examples(12)).enumerate().map(lambda _, example: example),
}


@pytest.mark.parametrize("kind", REPEATED_SETS)
def test_datasets_whose_making_tensorflow_hides_are_cached_if_they_stay_the_same(kind: str) -> None:
    dataset = REPEATED_SETS[kind]()
    assert pipeline.inspect(dataset, "train_data").may_cache
    first, second = ([targets.numpy() for _, targets in dataset] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("is_random", [False, True])
def test_a_reader_caches_its_own_examples_or_all_if_they_are_random(is_random: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(inputs: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return inputs + (tf.random.uniform([1]) if is_random else 0), targets

    dataset = pipeline.examples_of(examples(12).map(noisy).batch(4).cache())
    properties, counts, cache = pipeline.inspect(dataset, "train_data"), list[int](), tf.data.Dataset.cache

    def counted(self: tf.data.Dataset) -> tf.data.Dataset:
        counts.append(int(self.cardinality()))
        return cache(self)

    monkeypatch.setattr(tf.data.Dataset, "cache", counted)
    pipeline.batches(dataset, properties, Shard(2, seed=0, count=2))
    assert counts == ([] if is_random else [6])  # all twelve are cached already


def test_examples_that_stay_the_same_are_cached_whatever_computes_them() -> None:
    normalized, table = keras.layers.Normalization(), keras.layers.IntegerLookup(vocabulary=list(range(12)))
    normalized.adapt(np.arange(12.0)[:, np.newaxis])
    weights = tf.Variable([[2.0], [3.0]])

    def computed(inputs: tf.Tensor, targets: tf.Tensor) -> tuple[Any, Any]:
        tf.debugging.assert_non_negative(inputs)
        row = tf.cond(targets > 3, lambda: tf.gather(weights, 0), lambda: tf.gather(weights, 1))
        return normalized(inputs) + row, table(targets)

    assert pipeline.inspect(examples(12).shuffle(12).map(computed), "train_data").may_cache


def test_a_large_set_is_not_cached_and_is_shuffled_in_a_buffer() -> None:
    large = tf.data.Dataset.range(2**24).map(lambda number: (tf.zeros([100]), number))
    properties = pipeline.inspect(large, "train_data")
    assert not properties.may_cache
    assert properties.buffer == pipeline.SHUFFLE_BUFFER


def test_evaluation_reads_once_and_in_order() -> None:
    dataset = examples(11)
    batches = [inputs.numpy()[:, 0] for inputs, _ in pipeline.once(dataset, pipeline.inspect(dataset, "eval_data"), 4)]
    assert [len(batch) for batch in batches] == [4, 4, 3]
    np.testing.assert_array_equal(np.concatenate(batches), np.arange(11))


def generated() -> tf.data.Dataset:
    def generate() -> Iterator[tuple[list[float], int]]:
        yield from (([float(number)], number * 3) for number in range(10))

    return tf.data.Dataset.from_generator(generate, output_signature=(tf.TensorSpec([1]), tf.TensorSpec([], tf.int64)))


@pytest.mark.parametrize("make", [pipeline.once, lambda few, properties, size: pipeline.batches(few, properties, Shard(size, seed=0))])
def test_no_iterator_has_a_thread_that_tunes_it(make: Any) -> None:
    """Such a thread may take a minute to end."""
    few = examples(4).map(lambda *parts: parts, num_parallel_calls=tf.data.AUTOTUNE)
    assert make(few, pipeline.inspect(few, "train_data"), 2).options().autotune.enabled is False


def test_a_generator_is_recognised_as_python() -> None:
    assert pipeline.inspect(generated(), "train_data").python
    assert not pipeline.inspect(examples(3), "train_data").python
    assert numbers(generated(), Shard(2, seed=0), 5).shape == (5, 2)


EMPTY = {
    "known": lambda: examples(10).take(0),
    "filtered": lambda: examples(4).filter(lambda *_: False),
    "generated": lambda: tf.data.Dataset.from_generator(lambda: iter(()), output_signature=tf.TensorSpec([1])),
}


@pytest.mark.parametrize("kind", EMPTY)
def test_no_examples_are_an_error(kind: str) -> None:
    with pytest.raises(WorkloadError, match="has no examples"):
        pipeline.inspect(EMPTY[kind](), "train_data")


def test_batches_taken_apart_again_are_examples() -> None:
    assert pipeline.inspect(examples(10).batch(5).unbatch(), "train_data").count in {10, None}


def test_fewer_examples_than_readers_is_an_error() -> None:
    dataset = examples(2)
    with pytest.raises(WorkloadError, match="2 training examples for 3 tasks that read them"):
        pipeline.batches(dataset, pipeline.inspect(dataset, "train_data"), Shard(1, seed=0, count=3))


BATCHED = {
    "as fit has it": lambda: examples(10).shuffle(10).batch(4).prefetch(2),
    "endless": lambda: examples(10).shuffle(10).repeat().batch(4, drop_remainder=True).prefetch(tf.data.AUTOTUNE),
    "repeated batches": lambda: examples(10).batch(3).repeat(2),
    "cached": lambda: examples(10).cache().shuffle(10).batch(4).cache(),
}


@pytest.mark.parametrize("kind", BATCHED)
def test_batches_are_taken_apart_and_no_example_is_missed(kind: str) -> None:
    dataset = pipeline.examples_of(BATCHED[kind]())
    assert pipeline.inspect(dataset, "train_data").count == 10
    drawn = [numbers(dataset, Shard(5, seed=3, index=index, count=2), 2) for index in range(2)]  # two epochs of each reader
    assert sorted(np.concatenate(drawn).flat) == sorted([*range(10), *range(10)])


def test_operations_on_batches_are_kept() -> None:
    dataset = examples(6).batch(2).map(lambda inputs, targets: (inputs + 10, targets))
    assert pipeline.is_batched(dataset)
    assert [int(inputs[0]) for inputs, _ in pipeline.examples_of(dataset)] == [10, 11, 12, 13, 14, 15]


def test_only_the_last_batching_is_taken_apart() -> None:
    windows = tf.data.Dataset.range(12).batch(4, drop_remainder=True).map(lambda row: (row[:-1], row[1:]))
    unbatched = [inputs.numpy().tolist() for inputs, _ in pipeline.examples_of(windows.shuffle(3, seed=1).batch(2))]
    assert sorted(unbatched) == [[0, 1, 2], [4, 5, 6], [8, 9, 10]]


def dataset_of(*elements: tuple[Any, ...], shapes: list[list[int | None]]) -> tf.data.Dataset:
    """Return a Dataset of elements whose parts have these shapes."""
    return tf.data.Dataset.from_generator(lambda: iter(elements), output_signature=tuple(map(tf.TensorSpec, shapes)))


def rows(lengths: list[int]) -> tf.data.Dataset:
    """Return examples of different lengths: rows of ones, with a number."""
    return dataset_of(*((np.ones(length), 1.0) for length in lengths), shapes=[[None], []])


def generated_batches() -> tf.data.Dataset:
    batch = [(np.arange(n, n + 4)[:, None], np.arange(n, n + 4) * 3) for n in (0, 4, 8)]
    return dataset_of(*batch, shapes=[[None, 1], [None]]).map(lambda inputs, targets: (inputs, tf.cast(targets, tf.int64)))


HIDDEN_BATCHES: dict[str, Callable[[], tf.data.Dataset]] = {
    "from_generator": generated_batches,
    "of asserted number": lambda: generated_batches().apply(tf.data.experimental.assert_cardinality(3)),
    "prefetched": lambda: generated_batches().prefetch(1),
    "interleave": lambda: tf.data.Dataset.range(3).interleave(lambda i: examples(12).shard(3, i).batch(4, drop_remainder=True)),
    "parallel interleave": lambda: tf.data.Dataset.range(3).interleave(lambda i: examples(12).shard(3, i).batch(3), num_parallel_calls=2),
    "flat_map": lambda: tf.data.Dataset.range(3).flat_map(
        lambda i: examples(12).shard(3, i).batch(4).map(lambda *parts: parts).prefetch(1)
    ),
    "flat_map in flat_map": lambda: tf.data.Dataset.range(1).flat_map(
        lambda _: tf.data.Dataset.range(3).flat_map(lambda i: examples(12).shard(3, i).batch(4, drop_remainder=True))
    ),
    "sample_from_datasets": lambda: tf.data.Dataset.sample_from_datasets(
        [examples(12).shard(2, i).batch(2, drop_remainder=True) for i in (0, 1)]
    ),
    "choose_from_datasets": lambda: tf.data.Dataset.choose_from_datasets(
        [examples(12).shard(2, i).batch(6, drop_remainder=True) for i in (0, 1)], tf.data.Dataset.range(2)
    ),
    "group_by_window": lambda: examples(12).group_by_window(lambda _, targets: targets % 2, lambda _, group: group.batch(3), window_size=3),
}


@pytest.mark.parametrize("kind", HIDDEN_BATCHES)
def test_batches_made_by_other_operations_are_taken_apart(kind: str) -> None:
    dataset = HIDDEN_BATCHES[kind]()
    assert pipeline.is_batched(dataset)
    unbatched = pipeline.examples_of(dataset)
    assert pipeline.inspect(unbatched, "train_data").count in {12, None}
    assert sorted(numbers(unbatched, Shard(4, seed=3), 3).flat) == list(range(12))


SINGLE = {
    "rows of different lengths": lambda: rows([1, 2]),
    "known dimensions": lambda: dataset_of((np.ones([2, 4]), np.ones(2)), shapes=[[2, 4], [2]]),
    "batches taken apart by hand": lambda: (
        generated_batches().padded_batch(2).flat_map(lambda *parts: tf.data.Dataset.from_tensor_slices(parts))
    ),
    "unbatched rows": lambda: dataset_of((np.ones([1, 2, 4]), np.ones([1, 2])), shapes=[[None, None, 4], [None, None]]).unbatch(),
    "sampled examples": lambda: tf.data.Dataset.sample_from_datasets([examples(3), examples(3)]),
    "interleaved examples": lambda: tf.data.Dataset.range(2).interleave(lambda _: examples(3)),
    "windows": lambda: (
        tf.data.Dataset.range(9)
        .window(4, 1, drop_remainder=True)
        .flat_map(lambda window: window.batch(4))
        .map(lambda row: (row[:-1], row[1:]))
    ),
    "slices of batches": lambda: (
        tf.data.Dataset.range(2).flat_map(lambda _: tf.data.Dataset.range(8).batch(4)).map(lambda row: (row[:-1], row[-1]))
    ),
    "sampled slices of batches": lambda: tf.data.Dataset.sample_from_datasets(
        [tf.data.Dataset.range(8).batch(4).map(lambda row: (row[:-1], row[-1])) for _ in range(2)]
    ),
    "records": lambda: tf.data.TFRecordDataset([__file__]).map(
        lambda record: (tf.ensure_shape(tf.io.decode_raw(record, tf.uint8)[:, None], [None, 1]), tf.io.decode_raw(record, tf.uint8))
    ),
}


@pytest.mark.parametrize("kind", SINGLE)
def test_single_examples_are_not_taken_apart(kind: str) -> None:
    dataset = SINGLE[kind]()
    assert not pipeline.is_batched(dataset)
    assert not pipeline.may_be_batched(dataset)


def test_rows_of_numbers_are_reported_as_examples(capsys: pytest.CaptureFixture[str]) -> None:
    def output_for(dataset: tf.data.Dataset) -> str:
        data = user_data.UserData(dataset, CallArguments("own:model", {}, "", 1), "train_data")
        data.count()
        return capsys.readouterr().out

    tagged = dataset_of((np.ones(2), np.ones(2)), shapes=[[None], [None]])
    assert "each is taken as one example. If they are batches, add .unbatch()" in output_for(tagged)
    assert output_for(tagged.unbatch()) == output_for(rows([1, 2])) == ""
    assert "gives batches" in output_for(generated_batches())


def test_parts_of_different_lengths_cause_advice_to_batch() -> None:
    translated = dataset_of((np.ones([2, 4]), np.ones(3)), shapes=[[None, 4], [None]])
    with pytest.raises(tf.errors.InvalidArgumentError) as refused:
        list(pipeline.examples_of(translated))
    assert "if each is one example, add .batch(1)" in pipeline.batching_remedy(refused.value)
    ((inputs, _),) = pipeline.examples_of(translated.batch(1))
    assert inputs.shape == (2, 4)


def padded(values: tuple[float, float] | None) -> tf.data.Dataset:
    return rows([1, 2, 4, 5]).bucket_by_sequence_length(lambda row, _: tf.shape(row)[0], [3], [2, 2], padding_values=values)


def test_buckets_are_taken_apart_and_padded_as_before() -> None:
    assert pipeline.is_batched(padded(None))
    for values, padding in ((None, 0), ((-1.0, 0.0), -1)):
        unbatched = pipeline.examples_of(padded(values))
        ((inputs, targets),) = pipeline.once(unbatched, pipeline.inspect(unbatched, "eval_data"), 4)
        assert sorted(row[row != padding].size for row in inputs.numpy()) == [1, 2, 4, 5]
        assert (inputs.shape, targets.shape) == ((4, 5), (4,))


def test_datasets_padded_with_different_values_are_not_mixed() -> None:
    def mixed(*values: float) -> tf.data.Dataset:
        return pipeline.examples_of(
            tf.data.Dataset.sample_from_datasets([rows([1, 2]).padded_batch(2, padding_values=(value, 0.0)) for value in values], seed=1)
        )

    assert [float(value) for value in pipeline.padding(mixed(-1.0, -1.0))] == [-1, 0]
    assert pipeline.padding(mixed(0.0, 0.0)) == []
    with pytest.raises(WorkloadError, match="padded with different values"):
        pipeline.padding(mixed(-1.0, 0.0))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_users_padding_is_used_for_the_batches_made_of_the_examples(weighted: bool) -> None:
    def train_data() -> tf.data.Dataset:
        signature = (tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.float32))
        lengths = [1, 1, 3, 3]  # batches of two need no padding, one of four does
        data = tf.data.Dataset.from_generator(lambda: ((np.ones(n), np.full(n, 2), 1.0) for n in lengths), output_signature=signature)
        return data.padded_batch(2, padding_values=(0, -1, 0.0)).map(lambda x, y, w: (x, y, w) if weighted else (x, y))

    data = user_data.UserData(train_data, CallArguments("own:model", {}, "", 1), "train_data")
    if not weighted:  # only the types of all parts show which part a value is for
        with pytest.raises(
            WorkloadError, match="padding values for int32, int32, float32, but the operations after it give examples of int32, int32"
        ):
            list(data.once(4))
        return
    ((inputs, targets),) = data.once(4)
    assert inputs.numpy().tolist() == [[1, 0, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1]]
    assert targets["targets"].numpy().tolist() == [[2, -1, -1], [2, -1, -1], [2, 2, 2], [2, 2, 2]]
    first = next(iter(data.batches(Shard(4, 0))))[1]["targets"].numpy()
    assert sorted(first.tolist()) == sorted(targets["targets"].numpy().tolist())


def test_examples_of_different_lengths_are_padded_with_zeros() -> None:
    rows = tf.data.Dataset.range(1, 4).map(lambda length: (tf.ones([length]), length))
    ((inputs, _),) = pipeline.once(rows, pipeline.inspect(rows, "eval_data"), 3)
    np.testing.assert_array_equal(inputs.numpy(), [[1, 0, 0], [1, 1, 0], [1, 1, 1]])


def test_a_part_of_unknown_rank_is_batched_unchanged_and_different_lengths_cause_advice() -> None:
    def rows(lengths: list[int]) -> tf.data.Dataset:
        numbers = tf.data.Dataset.from_tensor_slices(lengths)
        return numbers.map(lambda length: (tf.ones([length]), tf.py_function(lambda number: number * 2, [length], tf.int32)))

    ((inputs, targets),) = pipeline.batched(rows([2, 2]), 2)
    assert (inputs.shape, targets.numpy().tolist()) == ((2, 2), [4, 4])
    with pytest.raises(tf.errors.InvalidArgumentError) as refused:
        list(pipeline.batched(rows([1, 2]), 2))
    assert "give it a shape such as [None] in output_signature, or by tf.ensure_shape" in pipeline.batching_remedy(refused.value)
    assert pipeline.batching_remedy(ValueError("Cannot batch")) == ""
