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

MAX_TASKS = 64  # each keeps a connection to each other; of more than this, a ring has less to do
_HANDSHAKE = 2.0  # seconds for who connects to say who it is
_RETRY_INTERVAL = 0.05  # seconds between tries to connect
TOKEN = 16  # bytes
_HELLO = struct.Struct(f"!{TOKEN}sI")  # the listener's token, who connects


@dataclass(frozen=True)
class Endpoint:
    """The data that a task's peers need to connect to it: where it listens, and a secret that only they get."""

    port: int
    token: bytes  # [TOKEN]


class Listener:
    """Listens for a task's peers until they are all there."""

    def __init__(self, address: str) -> None:
        """Listen beside `address`, host:port of the task's TensorFlow server: on the next port, or any where that is taken.

        On this machine's loopback it is any port, of that address alone: the next may be another task's. Raises OSError.
        """
        host, port = split_address(address)
        try:
            self._socket = listen(host, 0 if is_loopback(address) else (port + 1) % 2**16, MAX_TASKS)
        except OSError:
            self._socket = listen(host, 0, MAX_TASKS)
        self.invitation = Endpoint(self._socket.getsockname()[1], secrets.token_bytes(TOKEN))

    def meet(self, index: int, hosts: Sequence[str], invitations: Sequence[Endpoint], seconds: float) -> dict[int, socket.socket] | None:
        """Connect this task, `index`, with each other; return a connection a peer, None where not all are reached in `seconds`.

        Each connects to those before it, and waits for those after it.
        """
        deadline = time.monotonic() + seconds
        met: dict[int, socket.socket] = {}
        accepting = threading.Thread(target=self._accept, args=(range(index + 1, len(hosts)), invitations, met, deadline), daemon=True)
        accepting.start()
        for peer in range(index):
            if connection := _call(index, hosts[peer], invitations, peer, deadline):
                met[peer] = connection
        accepting.join()
        self._socket.close()
        if len(met) == len(hosts) - 1:
            return met
        for connection in met.values():
            connection.close()
        return None

    def _accept(self, expected: range, invitations: Sequence[Endpoint], met: dict[int, socket.socket], deadline: float) -> None:
        while any(peer not in met for peer in expected) and (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            with contextlib.suppress(OSError):
                connection, _ = self._socket.accept()
                peer = self._greet(connection, expected, invitations)
                if peer is None or peer in met:
                    connection.close()
                else:
                    met[peer] = connection

    def _greet(self, connection: socket.socket, expected: range, invitations: Sequence[Endpoint]) -> int | None:
        """Return who connected, once it is known to be one of us."""
        with contextlib.suppress(OSError):
            hello = _receive(connection, _HELLO.size, time.monotonic() + _HANDSHAKE)
            if len(hello) == _HELLO.size:
                token, peer = _HELLO.unpack(hello)
                if hmac.compare_digest(token, self.invitation.token) and peer in expected:
                    connection.sendall(invitations[peer].token)
                    return int(peer)
        return None


def _call(index: int, host: str, invitations: Sequence[Endpoint], peer: int, deadline: float) -> socket.socket | None:
    """Connect to a peer, and see that it is the one; None at the deadline."""
    while (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(OSError):
            connection = socket.create_connection((host, invitations[peer].port), timeout=left)
            with contextlib.suppress(OSError):
                connection.sendall(_HELLO.pack(invitations[peer].token, index))
                if hmac.compare_digest(_receive(connection, TOKEN, deadline), invitations[index].token):
                    return connection
            connection.close()
        time.sleep(_RETRY_INTERVAL)
    return None


def _receive(connection: socket.socket, count: int, deadline: float) -> bytes:
    received = b""
    while len(received) < count and (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        if not (more := connection.recv(count - len(received))):
            break
        received += more
    return received
