"""Means of vectors over several tasks, by TCP connections from each task to each other: the all-reduce of tasks on CPUs.

TensorFlow's own all-reduce makes a remote call for each hop, which wakes a dozen threads; a step of N tasks takes 2(N-1) hops.
Here a vector takes one or two hops for any N, and the task's own thread does all the work. Two tasks exchange whole vectors, and
both add them up. Of more tasks, the first adds up short vectors; long ones are split (reduce-scatter, then all-gather): each task
adds up one part and sends it to all others. So one task adds up each element, in the order of the tasks, and all get the same bits.
Source: Thakur, Rabenseifner, Gropp, Optimization of Collective Communication Operations in MPICH (2005), section 4, pairwise exchange.

Imports no TensorFlow.
"""

import itertools
import math
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import numpy as np

from trainer.engine.connections import keep_alive

Vector = np.ndarray[tuple[int], np.dtype[np.generic]]
Array = np.ndarray[Any, np.dtype[Any]]
Result = TypeVar("Result")

_ROOT_BYTES = 2**19  # the most that the first task receives to add up by itself; with more, all others would wait for it
_PAIR = 2
_POLL_INTERVAL = 1.0  # seconds of silence between checks whether all peers are there
_ALIGNED = 64  # bytes; TensorFlow takes an array so aligned as it is, and copies others (EIGEN_MAX_ALIGN_BYTES)

# A peer that the network no longer reaches is dropped after half a minute. One that only does not read stays, however long: it may
# be evaluating. So there is no TCP_USER_TIMEOUT, which would drop that, too.
_KEEP_ALIVE = (10, 5, 4)  # see keep_alive


class PeerUnreachableError(Exception):
    """A peer has gone away, and the message names it; or a task does not answer, and the message names those waited for."""


class TcpAllReduce:
    """Takes means of vectors over all tasks. Every task calls the same methods with vectors of the same form in the same order."""

    def __init__(
        self, index: int, names: Sequence[str], connections: Mapping[int, socket.socket], alive: Callable[[AbstractSet[int]], bool]
    ) -> None:
        """Take over `connections`, one per peer. `names` are for errors.

        `alive` is called with the peers that are waited for after each second of their silence; the wait ends if it returns False.
        """
        self._index, self._names, self._alive = index, tuple(names), alive
        self._peers = sorted(connections)
        for connection in connections.values():
            _configure(connection)
            connection.settimeout(_POLL_INTERVAL)
        # Two sockets for each connection, non-blocking and blocking: to block is less work than to poll.
        self._blocking = dict(connections)
        self._nonblocking = {peer: connection.dup() for peer, connection in connections.items()}
        for connection in self._nonblocking.values():
            connection.setblocking(False)
        self._receive_buffers: dict[tuple[int, str], list[Vector]] = {}  # reused: new memory each time costs as much as the sum
        self._reduce = self._reduce_pair if len(names) == _PAIR else self._reduce_by_size
        self.problem = ""  # why the last call failed

    def mean(self, vector: Vector) -> tuple[Vector, np.float32]:
        """Return the mean over all tasks of a floating-point vector, and the seconds that this took.

        A vector of half precision (bfloat16 or float16) is sent in its type, added up in float32 and returned as float32. If the first
        task adds up, it sends the result as float32.

        Raises:
            PeerUnreachableError: a peer is gone, or does not answer any more. No later call can succeed.
        """
        began = time.perf_counter()
        return self._guarded(self._reduce, vector, len(self._names)), np.float32(time.perf_counter() - began)

    def total(self, vector: Vector) -> Vector:
        """Return the sum over all tasks; otherwise as `mean`."""
        return self._guarded(self._reduce, vector, 1)

    def broadcast(self, vector: Vector) -> Vector:
        """Replace the content of `vector` by that of the first task's, and return it; otherwise as `mean`. The first task sends it to each other one."""
        return self._guarded(self._broadcast, vector)

    def all_gather(self, *arrays: Array) -> list[Any]:
        """Return each array concatenated over all tasks, in their order, and the seconds as `mean` does. First axes may differ.

        Raises:
            PeerUnreachableError: as `mean`.
        """
        began = time.perf_counter()
        counts = np.array([len(array) for array in arrays], np.int64)
        pieces = self._guarded(
            self._all_gather, np.concatenate([np.ascontiguousarray(one).reshape(-1).view(np.uint8) for one in (counts, *arrays)])
        )
        by_task = [_parts(piece, arrays) for piece in pieces]
        return [*(np.concatenate(parts) for parts in zip(*by_task, strict=True)), np.float32(time.perf_counter() - began)]

    def close(self) -> None:
        """End all connections."""
        for connection in (*self._nonblocking.values(), *self._blocking.values()):
            connection.close()

    def _guarded(self, operation: Callable[..., Result], *arguments: Any) -> Result:
        try:
            return operation(*arguments)
        except PeerUnreachableError as error:
            self.problem = str(error)
            raise

    def _reduce_pair(self, vector: Vector, divisor: int) -> Vector:
        other = 1 - self._index
        (piece,) = self._buffers(vector.size, vector.dtype)
        self._exchange({other: vector}, {other: piece})
        return _mean([vector, piece], divisor)  # of two, the order does not change the sum

    def _reduce_by_size(self, vector: Vector, divisor: int) -> Vector:
        reduce = self._reduce_at_root if vector.nbytes * len(self._peers) <= _ROOT_BYTES else self._reduce_scattered
        return reduce(vector, divisor)

    def _reduce_at_root(self, vector: Vector, divisor: int) -> Vector:
        if self._index:
            result = _aligned(vector.size, _sum_type(vector.dtype))
            self._send(0, vector)
            self._receive(0, _bytes(result))
            return result
        pieces = self._buffers(vector.size, vector.dtype)
        for peer, piece in zip(self._peers, pieces, strict=True):
            self._receive(peer, _bytes(piece))
        result = _mean([vector, *pieces], divisor)
        for peer in self._peers:
            self._send(peer, result)
        return result

    def _reduce_scattered(self, vector: Vector, divisor: int) -> Vector:
        bounds = np.linspace(0, vector.size, len(self._names) + 1).astype(int)
        parts = [slice(start, end) for start, end in itertools.pairwise(bounds)]
        own = parts[self._index]
        into = dict(zip(self._peers, self._buffers(own.stop - own.start, vector.dtype), strict=True))
        self._exchange({peer: vector[parts[peer]] for peer in self._peers}, into)
        ordered = [vector[own] if index == self._index else into[index] for index in range(len(self._names))]
        # In the type that is sent, so that all tasks hold the same bits.
        reduced = _mean(ordered, divisor).astype(vector.dtype, copy=False)
        full = _aligned(vector.size, vector.dtype)
        full[own] = reduced
        self._exchange(dict.fromkeys(self._peers, reduced), {peer: full[parts[peer]] for peer in self._peers})
        return full.astype(_sum_type(vector.dtype), copy=False)

    def _broadcast(self, vector: Vector) -> Vector:
        if self._index == 0:
            self._exchange(dict.fromkeys(self._peers, vector), {})
        else:
            self._receive(0, _bytes(vector))
        return vector

    def _all_gather(self, message: Vector) -> list[Vector]:
        sizes = {peer: np.empty(1, np.int64) for peer in self._peers}
        self._exchange(dict.fromkeys(self._peers, np.array([message.size])), sizes)
        into = {peer: np.empty(int(size[0]), np.uint8) for peer, size in sizes.items()}
        self._exchange(dict.fromkeys(self._peers, message), into)
        return [message if index == self._index else into[index] for index in range(len(self._names))]

    def _buffers(self, size: int, dtype: np.dtype[np.generic]) -> list[Vector]:
        key = (size, dtype.name)
        if key not in self._receive_buffers:
            self._receive_buffers[key] = [np.empty(size, dtype) for _ in self._peers]
        return self._receive_buffers[key]

    def _exchange(self, sending: Mapping[int, Vector], receiving: Mapping[int, Vector]) -> None:
        """Send and receive at the same time: if all tasks sent first, full buffers would have them wait for each other."""
        out = {peer: _bytes(vector) for peer, vector in sending.items() if vector.size}
        into = {peer: _bytes(vector) for peer, vector in receiving.items() if vector.size}
        while out:
            moved = [self._move_some(peer, out, socket.socket.send) for peer in list(out)]
            if out:
                moved += [self._move_some(peer, into, socket.socket.recv_into) for peer in list(into)]
                if not any(moved):
                    self._wait(out, into)
        for peer, remaining in into.items():
            self._receive(peer, remaining)

    def _move_some(self, peer: int, remaining: dict[int, memoryview], move: Callable[[socket.socket, memoryview], int]) -> bool:
        """Send or receive without blocking, and update `remaining`; return whether any bytes moved."""
        try:
            count = self._checked_count(peer, move(self._nonblocking[peer], remaining[peer]))
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._unreachable(peer, error) from error
        if count == len(remaining[peer]):
            del remaining[peer]
        else:
            remaining[peer] = remaining[peer][count:]
        return True

    def _wait(self, out: Mapping[int, memoryview], into: Mapping[int, memoryview]) -> None:
        poll = select.poll()
        for peer in {*out, *into}:
            poll.register(self._nonblocking[peer], select.POLLOUT * (peer in out) | select.POLLIN * (peer in into))
        while not poll.poll(_POLL_INTERVAL * 1000):
            self._check_peers({*out, *into})

    def _send(self, peer: int, vector: Vector) -> None:
        self._move_all(peer, _bytes(vector), socket.socket.send)

    def _receive(self, peer: int, remaining: memoryview) -> None:
        self._move_all(peer, remaining, socket.socket.recv_into)

    def _move_all(self, peer: int, remaining: memoryview, move: Callable[[socket.socket, memoryview], int]) -> None:
        while remaining:
            try:
                remaining = remaining[self._checked_count(peer, move(self._blocking[peer], remaining)) :]
            except TimeoutError as error:
                if error.errno:  # the kernel has dropped the connection; the socket's own timeout has no errno
                    raise self._unreachable(peer, error) from error
                self._check_peers({peer})
            except OSError as error:
                raise self._unreachable(peer, error) from error

    def _checked_count(self, peer: int, count: int) -> int:
        if not count:
            raise PeerUnreachableError(f"{self._names[peer]} is gone: it closed the connection")
        return count

    def _unreachable(self, peer: int, error: OSError) -> PeerUnreachableError:
        return PeerUnreachableError(f"{self._names[peer]} is gone: {error.strerror or error}")

    def _check_peers(self, waiting: AbstractSet[int]) -> None:
        if not self._alive(waiting):
            names = ", ".join(self._names[peer] for peer in sorted(waiting))
            raise PeerUnreachableError(f"a task of the cluster does not answer any more; this one waited for {names}")


def _configure(connection: socket.socket) -> None:
    """Let the kernel detect when the other end can no longer be reached, and send short messages at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(connection, *_KEEP_ALIVE)


def _parts(piece: Vector, like: Sequence[Array]) -> list[Array]:
    """Return the arrays of a message that begins with the length of each; types and further axes are those of `like`."""
    head = 8 * len(like)
    counts = piece[:head].view(np.int64)
    sizes = [int(count) * math.prod(array.shape[1:]) * array.itemsize for count, array in zip(counts, like, strict=True)]
    ends = np.cumsum([head, *sizes])
    return [
        piece[start:end].view(array.dtype).reshape(-1, *array.shape[1:])
        for array, start, end in zip(like, ends[:-1], ends[1:], strict=True)
    ]


def _bytes(vector: Vector) -> memoryview:
    return vector.view(np.uint8).data


def _sum_type(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    return np.dtype(np.float32) if dtype.itemsize < np.dtype(np.float32).itemsize else dtype


def _mean(vectors: Sequence[Vector], divisor: int) -> Vector:
    """Return the sum of vectors in their order, over `divisor`."""
    first, *others = vectors
    total = _aligned(first.size, _sum_type(first.dtype))
    if others and first.dtype == total.dtype:
        np.add(first, others.pop(0), out=total)
    else:
        total[:] = first
    for vector in others:
        np.add(total, vector.astype(total.dtype, copy=False), out=total)
    if divisor != 1:
        np.multiply(total, total.dtype.type(1 / divisor), out=total)
    return total


def _aligned(size: int, dtype: np.dtype[np.generic]) -> Vector:
    memory = np.empty(size * dtype.itemsize + _ALIGNED, np.uint8)
    start = -memory.ctypes.data % _ALIGNED
    return memory[start : start + size * dtype.itemsize].view(dtype)
