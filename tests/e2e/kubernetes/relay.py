"""A relay to the API server that can be cut or slowed: a port of loopback which is forwarded to it."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable


class Relay:
    """Listens while it is up, and closes its connections when it goes down. Each request is delayed by `slow` seconds."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self.slow = 0.0
        self._passes = threading.Event()
        self._passes.set()
        self._loses = False
        self._turns_away = False
        self.turned_away = 0
        self._open: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._listen()

    def down(self) -> None:
        """Close every connection and the port."""
        for one in [self._server, *self._open]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def turn_away(self) -> None:
        """Close every connection, and each new one at once, as a load balancer without servers does; `turned_away` counts the new ones."""
        self._turns_away = True
        for one in [*self._open]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def up(self) -> None:
        """Listen again, on the same port."""
        self._turns_away = False
        self._server = socket.create_server(("127.0.0.1", self.port))
        self._listen()

    def hold(self) -> None:
        """Hold back all further requests until `go`."""
        self._passes.clear()

    def go(self) -> None:
        """Forward the requests that were held back, and all further ones without delay."""
        self.slow = 0.0
        self._passes.set()

    def lose(self) -> None:
        """Close the connection of the next response in place of forwarding that."""
        self._loses = True

    def _listen(self) -> None:
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                if self._turns_away:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed with a reset
                    client.close()
                    self.turned_away += 1
                    continue
                far = socket.create_connection(self._target)
                self._open += [client, far]
                threading.Thread(target=_pump, args=(client, far, self._wait), daemon=True).start()
                threading.Thread(target=_pump, args=(far, client, self._lose), daemon=True).start()

    def _wait(self) -> None:
        time.sleep(self.slow)
        self._passes.wait()

    def _lose(self) -> None:
        if self._loses:
            self._loses = False
            raise ConnectionError


def _pump(reading: socket.socket, writing: socket.socket, wait: Callable[[], object]) -> None:
    with contextlib.suppress(OSError):
        while data := reading.recv(65536):
            wait()
            writing.sendall(data)
    with contextlib.suppress(OSError):
        writing.shutdown(socket.SHUT_WR)
