"""Batches from memory: the same for the same seed, resumed exactly, each example once an epoch."""

import functools
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.waiting import until
from trainer.workloads import in_memory
from trainer.workloads.protocol import Shard


def examples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs that encode their own number, and targets that must stay with them."""
    number = np.arange(count)
    return np.stack([number % 256, number // 256], axis=1).astype(np.uint8), (number * 3).astype(np.int32)


def numbers(shard: Shard, batches: int, count: int) -> np.ndarray:
    """Return the numbers of the examples in the first batches, [batches, batch_size], read from the inputs and checked against the targets."""
    return numbers_of(in_memory.batches(*examples(count), shard), shard.batch_size, batches)


def numbers_of(data: tf.data.Dataset, batch_size: int, batches: int) -> np.ndarray:
    drawn = []
    for inputs, targets in islice(data, batches):
        assert inputs.shape == (batch_size, 2)
        number = inputs[:, 0].numpy().astype(int) + 256 * inputs[:, 1].numpy().astype(int)
        np.testing.assert_array_equal(targets.numpy(), number * 3)
        drawn.append(number)
    return np.array(drawn)


def test_batches_have_the_dtypes_of_the_arrays_and_static_shapes() -> None:
    inputs, targets = in_memory.batches(*examples(50), Shard(8, seed=0)).element_spec
    assert (inputs.shape, inputs.dtype) == ((8, 2), tf.uint8)
    assert (targets.shape, targets.dtype) == ((8,), tf.int32)


def test_same_seed_gives_the_same_stream_and_another_seed_another() -> None:
    first = numbers(Shard(10, seed=7), 40, 100)
    np.testing.assert_array_equal(first, numbers(Shard(10, seed=7), 40, 100))
    assert (first != numbers(Shard(10, seed=8), 40, 100)).mean() > 0.9


Read = Callable[..., np.ndarray]


def reads_in_graph(batch_size: int, seed: int, readers: int, count: int) -> Read:
    """Return `numbers` as a function of batches, index and start; the pipeline is traced once for all of them, as for a remote worker."""

    @tf.function(autograph=False)
    def data(index: tf.Tensor, start: tf.Tensor) -> tf.data.Dataset:
        return in_memory.batches(*examples(count), Shard(batch_size, seed=seed, index=index, count=readers, start=start))

    def read(batches: int, index: int, start: int = 0) -> np.ndarray:
        return numbers_of(data(tf.constant(index, tf.int64), tf.constant(start, tf.int64)), batch_size, batches)

    return read


@pytest.fixture(scope="module")
def second_of_three() -> Read:
    """Return a function that reads the batches of the second of three readers."""
    return functools.partial(reads_in_graph(7, seed=3, readers=3, count=101), index=1)


@pytest.fixture(scope="module")
def whole(second_of_three: Read) -> np.ndarray:
    return second_of_three(270)


@pytest.mark.parametrize("start", [1, 37, 64, 65, 250])
def test_a_stream_started_later_continues_exactly(second_of_three: Read, whole: np.ndarray, start: int) -> None:
    np.testing.assert_array_equal(second_of_three(20, start=start), whole[start : start + 20])


def test_a_stream_read_outside_of_a_graph_is_the_same(whole: np.ndarray) -> None:
    shard = Shard(7, seed=3, index=1, count=3, start=37)
    np.testing.assert_array_equal(numbers(shard, 20, 101), whole[37:57])


def test_a_stream_continues_after_a_billion_batches() -> None:
    start = 10**9
    drawn = numbers(Shard(100, seed=3, start=start), 10, 1000)
    assert sorted(drawn.ravel()) == list(range(1000))
    np.testing.assert_array_equal(drawn[1:], numbers(Shard(100, seed=3, start=start + 1), 9, 1000))


@pytest.mark.parametrize("readers", [1, 2, 5])
def test_readers_together_see_each_example_once_an_epoch(readers: int) -> None:
    batches = 1000 // (readers * 10)
    read = reads_in_graph(10, seed=1, readers=readers, count=1000)
    drawn = [read(3 * batches, index) for index in range(readers)]
    epochs = []
    for epoch in range(3):
        seen = np.concatenate([reader[epoch * batches : (epoch + 1) * batches].ravel() for reader in drawn])
        assert sorted(seen) == list(range(1000))
        epochs.append(seen)
    assert (epochs[0] != epochs[1]).mean() > 0.9
    assert (epochs[1] != epochs[2]).mean() > 0.9


def test_no_example_is_dropped_if_batches_do_not_divide_an_epoch() -> None:
    drawn = numbers(Shard(32, seed=5), 100, 100).ravel()
    for epoch in range(32):
        assert sorted(drawn[epoch * 100 : (epoch + 1) * 100]) == list(range(100))


def test_a_batch_may_be_larger_than_the_set() -> None:
    drawn = numbers(Shard(25, seed=0), 4, 10).ravel()
    assert np.bincount(drawn).tolist() == [10] * 10


def test_examples_are_mixed_not_rotated() -> None:
    order = numbers(Shard(100, seed=0), 10, 1000).ravel()
    neighbours = np.abs(np.diff(order)) == 1
    assert neighbours.mean() < 0.01
    halves = order[:500] < 500
    assert 0.4 < halves.mean() < 0.6


def test_batches_can_be_traced_for_a_remote_worker_with_tensors_for_index_and_start() -> None:
    inputs, targets = examples(90)

    @tf.function
    def third(index: Any, start: Any) -> Any:
        last = tf.zeros([9], tf.int32)
        for _, numbers_of_batch in in_memory.batches(inputs, targets, Shard(9, seed=2, index=index, count=2, start=start)).take(3):
            last = tf.ensure_shape(numbers_of_batch, [9])
        return last

    traced = third(tf.constant(1, tf.int64), tf.constant(40, tf.int64)).numpy()
    np.testing.assert_array_equal(traced, numbers(Shard(9, seed=2, index=1, count=2, start=42), 1, 90)[0] * 3)


def test_once_gives_all_examples_in_order_with_a_smaller_last_batch() -> None:
    inputs, targets = examples(25)
    batches = list(in_memory.once(inputs, targets, 10))
    assert [len(labels) for _, labels in batches] == [10, 10, 5]
    np.testing.assert_array_equal(np.concatenate([images for images, _ in batches]), inputs)
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in batches]), targets)


@pytest.mark.parametrize("targets", [np.zeros(4), np.zeros(0)])
def test_inputs_without_targets_are_refused(targets: np.ndarray) -> None:
    with pytest.raises(ValueError, match=f"5 inputs and {len(targets)} targets"):
        in_memory.batches(np.zeros(5), targets, Shard(1, seed=0))
    with pytest.raises(ValueError, match="at least one"):
        in_memory.once(np.zeros(0), np.zeros(0), 1)


@pytest.mark.parametrize("gpus,ahead", [([], 0), (["GPU:0"], in_memory.PREFETCHED_BATCHES)])
def test_batches_are_prefetched_only_for_gpus(gpus: list[str], ahead: int) -> None:
    produced: list[int] = []

    def record(number: int) -> int:
        produced.append(number)
        return number

    numbers = tf.data.Dataset.range(100).map(lambda number: tf.numpy_function(record, [number], tf.int64))
    batches = iter(in_memory.prefetched(numbers, gpus).with_options(in_memory.inline_options()))
    assert int(next(batches)) == 0
    until("the batches made ahead", lambda: len(produced) >= 1 + ahead, seen=lambda: produced)
    assert produced == list(range(1 + ahead))
    assert [int(number) for number in islice(batches, 5)] == [1, 2, 3, 4, 5]
