"""Means of vectors over several tasks, by TCP connections from each task to each other: the all-reduce of tasks on CPUs.

TensorFlow's own all-reduce makes a remote call of each hop, which wakes a dozen threads; 2(N-1) hops make a step of N tasks.
Here a vector takes two hops whatever N is, and a task's own thread does what is to be done. Two tasks send each other all
they have. Of more, the first adds up what is short; what is long is shared out, each task adding up one part and sending
it to all others. Source: Thakur, Rabenseifner, Gropp, Optimization of Collective Communication Operations in MPICH (2005),
section 4, pairwise exchange. Each element is added up in the order of the tasks by one of them, so all get the same bits.

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

Vector = np.ndarray[tuple[int], np.dtype[np.generic]]
Array = np.ndarray[Any, np.dtype[Any]]
Result = TypeVar("Result")

_HUB_BYTES = 2**19  # what the first task takes in at most to add up alone; beyond, it would be what all wait for
_PAIR = 2
_POLL_INTERVAL = 1.0  # seconds of silence between checks whether all peers are there
_ALIGNED = 64  # bytes; TensorFlow takes an array so aligned as it is, and copies others (EIGEN_MAX_ALIGN_BYTES)

# A silent peer whom the network no longer reaches is dropped after half a minute. One that does not read is none such, however
# long it takes: it may be evaluating. So there is no TCP_USER_TIMEOUT, which would end that, too.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}


class PeerUnreachableError(Exception):
    """A peer has gone away or does not answer; the message names it."""


class TcpAllReduce:
    """Takes means of vectors over all tasks. Every task calls the same methods with vectors of the same form in the same order."""

    def __init__(
        self, index: int, names: Sequence[str], connections: Mapping[int, socket.socket], alive: Callable[[AbstractSet[int]], bool]
    ) -> None:
        """Take over `connections`, one per peer. `names` are for errors.

        `alive` is asked after each second that the peers it is given were silent, and ends the wait by saying no.
        """
        self._index, self._names, self._alive = index, tuple(names), alive
        self._peers = sorted(connections)
        for connection in connections.values():
            _configure(connection)
            connection.settimeout(_POLL_INTERVAL)
        # Two objects for each connection: one does at once what it can, the other waits. Waiting so is less work than polling.
        self._blocking = dict(connections)
        self._nonblocking = {peer: connection.dup() for peer, connection in connections.items()}
        for connection in self._nonblocking.values():
            connection.setblocking(False)
        self._pieces: dict[tuple[int, str], list[Vector]] = {}  # what peers send, reused: new memory each time costs as much as the sum
        self._reduce = self._swapped if len(names) == _PAIR else self._by_hub_or_scattered
        self.problem = ""  # why the last call failed

    def mean(self, vector: Vector) -> tuple[Vector, np.float32]:
        """Return the mean over all tasks of a floating-point vector, and the seconds it took until everybody's was there.

        One of half precision (bfloat16 or float16) is sent as it is, added up in float32 and returned as that.

        Raises:
            PeerUnreachableError: a peer is gone, or does not answer any more. Nothing can be exchanged then.
        """
        began = time.perf_counter()
        return self._guarded(self._reduce, vector, len(self._names)), np.float32(time.perf_counter() - began)

    def total(self, vector: Vector) -> Vector:
        """Return the sum over all tasks; otherwise as `mean`."""
        return self._guarded(self._reduce, vector, 1)

    def broadcast(self, vector: Vector) -> Vector:
        """Replace what is in `vector` by what the first task's has, and return it; otherwise as `mean`. The first sends it to each of the others."""
        return self._guarded(self._broadcast, vector)

    def all_gather(self, *arrays: Array) -> list[Any]:
        """Return each array with those of all tasks, one after another in the tasks' order, and the seconds as `mean`. First axes may differ.

        Raises:
            PeerUnreachableError: as `mean`.
        """
        began = time.perf_counter()
        counts = np.array([len(array) for array in arrays], np.int64)
        pieces = self._guarded(
            self._gathered, np.concatenate([np.ascontiguousarray(one).reshape(-1).view(np.uint8) for one in (counts, *arrays)])
        )
        by_task = [_parts(piece, arrays) for piece in pieces]
        return [*(np.concatenate(parts) for parts in zip(*by_task, strict=True)), np.float32(time.perf_counter() - began)]

    def close(self) -> None:
        """End all connections."""
        for connection in (*self._nonblocking.values(), *self._blocking.values()):
            connection.close()

    def _guarded(self, operation: Callable[..., Result], *given: Any) -> Result:
        try:
            return operation(*given)
        except PeerUnreachableError as error:
            self.problem = str(error)
            raise

    def _swapped(self, vector: Vector, divisor: int) -> Vector:
        other = 1 - self._index
        (piece,) = self._buffers(1, vector.size, vector.dtype)
        self._swap({other: vector}, {other: piece})
        return _mean([vector, piece], divisor)  # of two, the order does not change the sum

    def _by_hub_or_scattered(self, vector: Vector, divisor: int) -> Vector:
        reduce = self._by_hub if vector.nbytes * len(self._peers) <= _HUB_BYTES else self._scattered
        return reduce(vector, divisor)

    def _by_hub(self, vector: Vector, divisor: int) -> Vector:
        if self._index:
            result = _aligned(vector.size, _sum_type(vector.dtype))
            self._send(0, vector)
            self._receive(0, _bytes(result))
            return result
        pieces = self._buffers(len(self._peers), vector.size, vector.dtype)
        for peer, piece in zip(self._peers, pieces, strict=True):
            self._receive(peer, _bytes(piece))
        result = _mean([vector, *pieces], divisor)
        for peer in self._peers:
            self._send(peer, result)
        return result

    def _scattered(self, vector: Vector, divisor: int) -> Vector:
        bounds = np.linspace(0, vector.size, len(self._names) + 1).astype(int)
        parts = [slice(start, end) for start, end in itertools.pairwise(bounds)]
        own = parts[self._index]
        into = dict(zip(self._peers, self._buffers(len(self._peers), own.stop - own.start, vector.dtype), strict=True))
        self._swap({peer: vector[parts[peer]] for peer in self._peers}, into)
        ordered = [vector[own] if index == self._index else into[index] for index in range(len(self._names))]
        # As it travels: all are to hold the same bits.
        done = _mean(ordered, divisor).astype(vector.dtype, copy=False)
        full = _aligned(vector.size, vector.dtype)
        full[own] = done
        self._swap(dict.fromkeys(self._peers, done), {peer: full[parts[peer]] for peer in self._peers})
        return full.astype(_sum_type(vector.dtype), copy=False)

    def _broadcast(self, vector: Vector) -> Vector:
        if self._index == 0:
            self._swap(dict.fromkeys(self._peers, vector), {})
        else:
            self._receive(0, _bytes(vector))
        return vector

    def _gathered(self, message: Vector) -> list[Vector]:
        sizes = {peer: np.empty(1, np.int64) for peer in self._peers}
        self._swap(dict.fromkeys(self._peers, np.array([message.size])), sizes)
        into = {peer: np.empty(int(size[0]), np.uint8) for peer, size in sizes.items()}
        self._swap(dict.fromkeys(self._peers, message), into)
        return [message if index == self._index else into[index] for index in range(len(self._names))]

    def _buffers(self, count: int, size: int, dtype: np.dtype[np.generic]) -> list[Vector]:
        key = (size, dtype.name)
        if key not in self._pieces:
            self._pieces[key] = [np.empty(size, dtype) for _ in range(count)]
        return self._pieces[key]

    def _swap(self, sending: Mapping[int, Vector], receiving: Mapping[int, Vector]) -> None:
        """Send and receive at once: if all sent first, full buffers would have each wait for the other."""
        out = {peer: _bytes(vector) for peer, vector in sending.items() if vector.size}
        into = {peer: _bytes(vector) for peer, vector in receiving.items() if vector.size}
        while out:
            moved = [self._move_some(peer, out, socket.socket.send) for peer in list(out)]
            if out:
                moved += [self._move_some(peer, into, socket.socket.recv_into) for peer in list(into)]
                if not any(moved):
                    self._wait(out, into)
        for peer, left in into.items():
            self._receive(peer, left)

    def _move_some(self, peer: int, left: dict[int, memoryview], move: Callable[[socket.socket, memoryview], int]) -> bool:
        """Send or receive what can be at once, drop what is done from `left`; return whether anything was."""
        try:
            count = self._moved(peer, move(self._nonblocking[peer], left[peer]))
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._unreachable(peer, error) from error
        if count == len(left[peer]):
            del left[peer]
        else:
            left[peer] = left[peer][count:]
        return True

    def _wait(self, out: Mapping[int, memoryview], into: Mapping[int, memoryview]) -> None:
        poll = select.poll()
        for peer in {*out, *into}:
            poll.register(self._nonblocking[peer], select.POLLOUT * (peer in out) | select.POLLIN * (peer in into))
        while not poll.poll(_POLL_INTERVAL * 1000):
            self._check_peers({*out, *into})

    def _send(self, peer: int, vector: Vector) -> None:
        self._move_all(peer, _bytes(vector), socket.socket.send)

    def _receive(self, peer: int, left: memoryview) -> None:
        self._move_all(peer, left, socket.socket.recv_into)

    def _move_all(self, peer: int, left: memoryview, move: Callable[[socket.socket, memoryview], int]) -> None:
        while left:
            try:
                left = left[self._moved(peer, move(self._blocking[peer], left)) :]
            except TimeoutError as error:
                if error.errno:  # the kernel has dropped it; our own limit has no number
                    raise self._unreachable(peer, error) from error
                self._check_peers({peer})
            except OSError as error:
                raise self._unreachable(peer, error) from error

    def _moved(self, peer: int, count: int) -> int:
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
    """Let the kernel find out when the other end cannot be reached any more, and send short messages at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if option := getattr(socket, name, None):  # not every system has every one
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _parts(piece: Vector, like: Sequence[Array]) -> list[Array]:
    """Return the arrays of a message that begins with the length of each; types and further axes are those of `like`."""
    head = 8 * len(like)
    counts = piece[:head].view(np.int64)
    sizes = [int(count) * math.prod(one.shape[1:]) * one.itemsize for count, one in zip(counts, like, strict=True)]
    ends = np.cumsum([head, *sizes])
    return [piece[start:end].view(one.dtype).reshape(-1, *one.shape[1:]) for one, start, end in zip(like, ends[:-1], ends[1:], strict=True)]


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
