"""Means over tasks through direct TCP connections: each task is a thread here, the connections are real."""

import contextlib
import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from trainer.engine.collectives import tcp_all_reduce
from trainer.engine.collectives.rendezvous import Endpoint, Listener
from trainer.engine.collectives.tcp_all_reduce import PeerUnreachableError, TcpAllReduce

HERE = "127.0.0.1"
ADDRESS = f"{HERE}:1"  # of a server that need not exist
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SOON, LONG = 0.5, 20.0

Groups = Callable[..., list[TcpAllReduce]]


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """Call each in a thread of its own; return what they return, or the errors that they raise."""

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except PeerUnreachableError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(outcome, calls))


def connected(size: int) -> list[dict[int, socket.socket]]:
    listeners = [Listener(ADDRESS) for _ in range(size)]
    endpoints = [listener.endpoint for listener in listeners]
    by_task = at_once([partial(listeners[i].connect, i, [HERE] * size, endpoints, LONG) for i in range(size)])
    assert all(len(connections) == size - 1 for connections in by_task)
    return by_task


@pytest.fixture
def group() -> Iterator[Groups]:
    created: list[TcpAllReduce] = []

    def make(size: int, live: Callable[[AbstractSet[int]], bool] = lambda _: True) -> list[TcpAllReduce]:
        names = [f"worker-{i}" for i in range(size)]
        created.extend(TcpAllReduce(i, names, connections, live) for i, connections in enumerate(connected(size)))
        return created[-size:]

    yield make
    for task in created:
        task.close()


# Few elements are added up by the first task, many are shared out; with fewer elements than tasks, some tasks have none to add up.
SIZES = [(2, 0), (3, 0), (7, 1), (2, 1), (3, 2), (5, 1000), (7, 300_007)]
# Sums have the type of the vector, or are float32; these sizes have one of each. They are more than sockets buffer.
LARGE_SIZES = [(2, 2_000_000), (3, 2_000_001)]


@pytest.mark.parametrize(
    "dtype,size,elements",
    [
        *((dtype, *size) for dtype in (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), BFLOAT16) for size in SIZES),
        *((dtype, *size) for dtype in (np.dtype(np.float32), BFLOAT16) for size in LARGE_SIZES),
    ],
    ids=str,
)
def test_every_task_gets_the_same_mean(group: Groups, size: int, elements: int, dtype: np.dtype[Any]) -> None:
    tasks = group(size)
    random = np.random.default_rng(size)
    # Twice, of different vectors: the first mean must leave nothing in the second.
    for _ in range(2):
        vectors = [random.normal(size=elements).astype(dtype) for _ in range(size)]
        results = at_once([partial(task.mean, vector) for task, vector in zip(tasks, vectors, strict=True)])
        expected = np.mean([vector.astype(np.float64) for vector in vectors], axis=0)
        sums = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
        # Half precision, of 8 and 11 bits, is rounded once on the way back, for any number of tasks.
        tolerance = {BFLOAT16: 2**-8, np.dtype(np.float16): 2**-11, np.dtype(np.float32): 1e-6}.get(dtype, 1e-14)
        for mean, waited in results:
            assert mean.dtype == sums
            assert waited >= 0
            np.testing.assert_array_equal(mean, results[0][0])
        np.testing.assert_allclose(results[0][0], expected, rtol=tolerance, atol=tolerance)


def test_totals_and_means_of_several_lengths_may_alternate(group: Groups) -> None:
    tasks = group(3)

    def work(index: int) -> list[float]:
        task = tasks[index]
        results = []
        for step in range(50):
            results.append(float(task.mean(np.full(100_000 + step, index, np.float32))[0].sum()))
            results.append(float(task.total(np.array([index, step], np.float32)).sum()))
        return results

    first, *others = at_once([partial(work, i) for i in range(3)])
    assert first == [value for step in range(50) for value in (100_000 + step, 3 + 3 * step)]
    assert others == [first, first]


@pytest.mark.parametrize("size,elements", [(2, 0), (2, 1), (3, 2_000_000)])
def test_every_task_gets_the_vector_of_the_first(group: Groups, size: int, elements: int) -> None:
    vectors = [np.full(elements, i).astype(BFLOAT16) for i in range(size)]
    for received in at_once([partial(task.broadcast, vector) for task, vector in zip(group(size), vectors, strict=True)]):
        np.testing.assert_array_equal(received, vectors[0])


@pytest.mark.parametrize("lengths", [(2, 3), (0, 4, 2), (0, 0), (40_000, 1, 7)], ids=str)
def test_arrays_of_different_lengths_are_concatenated(group: Groups, lengths: tuple[int, ...]) -> None:
    random = np.random.default_rng(3)
    arrays = [(np.arange(count), random.normal(size=(count, 3)).astype(BFLOAT16)) for count in lengths]
    for indices, rows, waited in at_once([partial(task.all_gather, *own) for task, own in zip(group(len(lengths)), arrays, strict=True)]):
        np.testing.assert_array_equal(indices, np.concatenate([own for own, _ in arrays]))
        np.testing.assert_array_equal(rows, np.concatenate([own for _, own in arrays]))
        assert waited >= 0


def test_the_last_task_waits_least(group: Groups) -> None:
    tasks = group(2)
    vector = np.ones(10, np.float32)

    def late() -> Any:
        time.sleep(SOON)
        return tasks[1].mean(vector)

    (_, early_waited), (_, late_waited) = at_once([partial(tasks[0].mean, vector), late])
    assert early_waited > SOON / 2
    assert late_waited < early_waited


@pytest.mark.parametrize("size,elements", [(2, 10), (3, 10), (3, 1_000_000)])
def test_a_peer_that_leaves_is_named_by_all_that_wait_for_it(group: Groups, size: int, elements: int) -> None:
    tasks = group(size)
    vector = np.ones(elements, np.float32)

    def leave() -> None:
        time.sleep(SOON / 5)  # the others already wait, or find that it has left
        tasks[0].close()

    _, *errors = at_once([leave, *(partial(task.mean, vector) for task in tasks[1:])])
    assert [type(error) for error in errors] == [PeerUnreachableError] * (size - 1)
    assert {str(error).partition(":")[0] for error in errors} == {"worker-0 is gone"}
    assert [task.problem for task in tasks[1:]] == [str(error) for error in errors]


@pytest.mark.parametrize("size,elements", [(2, 10), (3, 2_000_000)])
def test_tasks_wait_for_a_silent_peer_until_a_check_gives_it_up(
    group: Groups, size: int, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_all_reduce, "_POLL_INTERVAL", 0.05)
    checks = itertools.count()
    tasks = group(size, lambda waiting: 0 not in waiting or next(checks) < 5)
    errors = at_once([partial(task.mean, np.ones(elements, np.float32)) for task in tasks[1:]])
    assert next(checks) > 5
    assert all("does not answer any more" in str(error) for error in errors)
    assert all("worker-0" in str(error) for error in errors)


def test_strangers_are_rejected_and_do_not_keep_the_peers_out() -> None:
    listeners = [Listener(ADDRESS) for _ in range(2)]
    endpoints = [listener.endpoint for listener in listeners]
    handshake = struct.Struct("!16sI")
    messages = [
        b"",
        b"",
        b"abc",
        b"GET / HTTP/1.1\r\n\r\n" * 2,
        handshake.pack(b"\0" * 16, 1),
        handshake.pack(endpoints[0].token, 0),
        handshake.pack(endpoints[0].token, 7),
    ]
    strangers = []
    for message in messages:
        strangers.append(socket.create_connection((HERE, endpoints[0].port)))
        strangers[-1].sendall(message)
    strangers[0].close()
    by_task = at_once([partial(listeners[i].connect, i, [HERE] * 2, endpoints, LONG) for i in range(2)])
    assert [set(connections) for connections in by_task] == [{1}, {0}]
    for stranger in strangers[1:]:
        stranger.settimeout(LONG)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        stranger.close()
    for connection in itertools.chain.from_iterable(connections.values() for connections in by_task):
        connection.close()


def test_connecting_to_an_unreachable_peer_ends_at_the_deadline() -> None:
    with socket.create_server((HERE, 0)) as silent:
        listener = Listener(ADDRESS)
        endpoints = [Endpoint(silent.getsockname()[1], b"0" * 16), listener.endpoint, Endpoint(1, b"1" * 16)]
        start = time.monotonic()
        assert listener.connect(1, [HERE] * 3, endpoints, SOON) is None
        assert SOON <= time.monotonic() - start < LONG
    assert threading.active_count() < 20


def test_a_listener_takes_any_port_on_loopback_and_the_one_after_tensorflows_elsewhere() -> None:
    on_loopback = Listener("localhost:2222")
    assert on_loopback.endpoint.port not in (2222, 2223)
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    first, second = (Listener(f"somewhere.example:{port - 1}") for _ in range(2))
    assert first.endpoint.port == port
    assert second.endpoint.port not in (port, 0)
    for listener in (on_loopback, first, second):
        assert listener.connect(0, [HERE], [listener.endpoint], SOON) == {}
