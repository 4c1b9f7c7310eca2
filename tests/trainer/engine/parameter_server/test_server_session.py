"""A session on servers as far as it needs none: a refused model, a worker's data set, whose arrays are not in a graph, and its calls."""

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.engine.small import Small, small_config
from trainer.engine.parameter_server import server_session
from trainer.engine.parameter_server.asynchronous import AsynchronousSession
from trainer.engine.parameter_server.server_session import WorkerCalls, WorkerData
from trainer.engine.parameter_server.worker_pool import Connection
from trainer.workloads import in_memory
from trainer.workloads.errors import WorkloadError
from trainer.workloads.protocol import Shard

ROWS = np.arange(1_500_000, dtype=np.float32).reshape(-1, 5)  # 6 MB
TARGETS = np.arange(len(ROWS))


def from_arrays(worker: tf.Tensor, start: tf.Tensor) -> tf.data.Dataset:
    return in_memory.batches(ROWS, TARGETS, Shard(3, seed=1, index=worker, count=2, start=start))


def from_a_data_set(worker: tf.Tensor, start: tf.Tensor) -> tf.data.Dataset:
    small = tf.constant([[1.0], [2.0]])
    rows = tf.data.Dataset.from_tensor_slices((ROWS, TARGETS)).shard(2, worker).skip(start * 3)
    return rows.map(lambda row, target: (row * tf.gather(small, worker), target)).batch(3)


@pytest.mark.parametrize("make, part_bytes", [(from_arrays, 1 << 30), (from_arrays, 1_000_000), (from_a_data_set, 1 << 30)])
def test_a_workers_data_set_is_the_same_and_its_graph_has_no_arrays(
    make: Callable[[tf.Tensor, tf.Tensor], tf.data.Dataset], part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_memory, "PART_BYTES", part_bytes)
    data = WorkerData(make)
    gc.collect()  # the data set must hold everything that it needs
    assert data._function.graph.as_graph_def().ByteSize() < 100_000
    for worker, start in (0, 0), (1, 7):
        arguments = tf.constant(worker, tf.int64), tf.constant(start, tf.int64)
        assert data(*arguments).element_spec == make(*arguments).element_spec
        for expected, actual in zip(islice(make(*arguments), 4), islice(data(*arguments), 4), strict=True):
            tf.nest.map_structure(np.testing.assert_array_equal, expected, actual)


def test_few_long_texts_stay_constants() -> None:
    texts = [letter * 400_000 for letter in "abcd"]
    data = WorkerData(lambda worker, start: tf.data.Dataset.from_tensor_slices(texts).shard(2, worker).skip(start))
    assert [text.numpy().decode() for text in data(tf.constant(1, tf.int64), tf.constant(0, tf.int64))] == texts[1::2]


def test_workers_that_cannot_synchronize_a_normalization_refuse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_session, "CHIEF_CPU", "CPU:0")
    two_workers = Connection(coordinator=None, servers=1, workers=2)
    with pytest.raises(WorkloadError, match=r"has synchronized=True, but tasks of parameter_server do not exchange"):
        AsynchronousSession(Small({"normalised": "synchronized"}), small_config(strategy="parameter_server"), two_workers, lambda: False)


class Drawing:
    """Makes functions that draw a number and return the worker that they are seeded for. While `interrupt` is set, a trace calls it first."""

    def __init__(self) -> None:
        self.interrupt: Callable[[], None] | None = None

    def __call__(self, worker: int) -> Any:
        @tf.function(autograph=False)
        def draw() -> tf.Tensor:
            if self.interrupt:
                self.interrupt()
            tf.random.uniform([])
            return tf.constant(worker)

        return draw


def test_each_worker_has_its_own_numbers_after_the_first_was_lost_in_a_trace() -> None:
    make = Drawing()
    calls = WorkerCalls(make)

    def lose() -> None:
        raise tf.errors.UnavailableError(None, None, "lost")

    make.interrupt = lose
    with pytest.raises(tf.errors.UnavailableError):
        calls(0)
    make.interrupt = None
    assert [int(calls(worker)) for worker in range(3)] == [0, 1, 2]


def test_a_call_does_not_wait_for_the_trace_of_another_worker() -> None:
    make = Drawing()
    calls = WorkerCalls(make)
    calls(0)
    tracing, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        tracing.set()
        go_on.wait(60)

    make.interrupt = wait
    with ThreadPoolExecutor() as pool:
        traced = pool.submit(calls, 1)
        assert tracing.wait(60)
        called = pool.submit(calls, 0)
        try:
            called.result(10)
        finally:
            go_on.set()
        traced.result(60)
