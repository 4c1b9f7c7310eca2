"""The rendezvous of the tasks of an all-reduce: connections to each other, beside TensorFlow's own."""

import contextlib
import hmac
import secrets
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.socket_filter import is_loopback, listen
from trainer.tf_config import split_address

MAX_TASKS = 64  # each connects to every other; for more of them, a ring costs less
_HANDSHAKE_TIMEOUT = 2.0  # seconds in which a task that connects has to identify itself
_RETRY_INTERVAL = 0.05  # seconds between tries to connect
_TOKEN_BYTES = 16
_HANDSHAKE = struct.Struct(f"!{_TOKEN_BYTES}sI")  # the listener's token, the index of the task that connects


@dataclass(frozen=True)
class Endpoint:
    """The data that a task's peers need to connect to it: where it listens, and a secret that only they get."""

    port: int
    token: bytes  # [_TOKEN_BYTES]


class Listener:
    """Listens for a task's peers until they are all there."""

    def __init__(self, address: str) -> None:
        """Listen beside `address`, host:port of the task's TensorFlow server: on the next port, or on any if that is taken.

        On loopback it is any port, and only of that address: the next port may be another task's. Raises OSError.
        """
        host, port = split_address(address)
        try:
            self._socket = listen(host, 0 if is_loopback(address) else (port + 1) % 2**16, MAX_TASKS)
        except OSError:
            self._socket = listen(host, 0, MAX_TASKS)
        self.endpoint = Endpoint(self._socket.getsockname()[1], secrets.token_bytes(_TOKEN_BYTES))

    def connect(self, index: int, hosts: Sequence[str], endpoints: Sequence[Endpoint], seconds: float) -> dict[int, socket.socket] | None:
        """Connect this task, `index`, with each other one; return peer -> connection, None if not all are reached in `seconds`.

        Each task connects to those before it, and accepts those after it.
        """
        deadline = time.monotonic() + seconds
        connections: dict[int, socket.socket] = {}
        accepting = threading.Thread(
            target=self._accept, args=(range(index + 1, len(hosts)), endpoints, connections, deadline), daemon=True
        )
        accepting.start()
        for peer in range(index):
            if connection := _connect(index, hosts[peer], endpoints, peer, deadline):
                connections[peer] = connection
        accepting.join()
        self._socket.close()
        if len(connections) == len(hosts) - 1:
            return connections
        for connection in connections.values():
            connection.close()
        return None

    def _accept(self, expected: range, endpoints: Sequence[Endpoint], connections: dict[int, socket.socket], deadline: float) -> None:
        while any(peer not in connections for peer in expected) and (remaining := deadline - time.monotonic()) > 0:
            self._socket.settimeout(remaining)
            with contextlib.suppress(OSError):
                connection, _ = self._socket.accept()
                peer = self._authenticate(connection, expected, endpoints)
                if peer is None or peer in connections:
                    connection.close()
                else:
                    connections[peer] = connection

    def _authenticate(self, connection: socket.socket, expected: range, endpoints: Sequence[Endpoint]) -> int | None:
        """Return the index of the task that connected, if it proves to be one of this run; else None."""
        with contextlib.suppress(OSError):
            message = _receive(connection, _HANDSHAKE.size, time.monotonic() + _HANDSHAKE_TIMEOUT)
            if len(message) == _HANDSHAKE.size:
                token, peer = _HANDSHAKE.unpack(message)
                if hmac.compare_digest(token, self.endpoint.token) and peer in expected:
                    connection.sendall(endpoints[peer].token)
                    return int(peer)
        return None


def _connect(index: int, host: str, endpoints: Sequence[Endpoint], peer: int, deadline: float) -> socket.socket | None:
    """Connect to a peer, and authenticate it; return None at the deadline."""
    while (remaining := deadline - time.monotonic()) > 0:
        with contextlib.suppress(OSError):
            connection = socket.create_connection((host, endpoints[peer].port), timeout=remaining)
            with contextlib.suppress(OSError):
                connection.sendall(_HANDSHAKE.pack(endpoints[peer].token, index))
                if hmac.compare_digest(_receive(connection, _TOKEN_BYTES, deadline), endpoints[index].token):
                    return connection
            connection.close()
        time.sleep(_RETRY_INTERVAL)
    return None


def _receive(connection: socket.socket, count: int, deadline: float) -> bytes:
    received = b""
    while len(received) < count and (remaining := deadline - time.monotonic()) > 0:
        connection.settimeout(remaining)
        if not (more := connection.recv(count - len(received))):
            break
        received += more
    return received
