"""A relay to the API server that can be cut or slowed: a loopback port that is forwarded to it."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable


class Relay:
    """Listens while it is up, and closes its connections when it goes down. Each request is delayed by `delay` seconds."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self.delay = 0.0
        self._passes = threading.Event()
        self._passes.set()
        self._loses_response = False
        self._refuses = False
        self.refused = 0
        self._open: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._listen()

    def down(self) -> None:
        """Close every connection and the port."""
        for connection in [self._server, *self._open]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._open.clear()

    def refuse(self) -> None:
        """Close every connection, and each new one at once, as a load balancer without servers does; `refused` counts the new ones."""
        self._refuses = True
        for connection in [*self._open]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def up(self) -> None:
        """Listen again, on the same port."""
        self._refuses = False
        self._server = socket.create_server(("127.0.0.1", self.port))
        self._listen()

    def hold(self) -> None:
        """Hold back all further requests until `resume`."""
        self._passes.clear()

    def resume(self) -> None:
        """Forward the requests that were held back, and all further ones without delay."""
        self.delay = 0.0
        self._passes.set()

    def lose_response(self) -> None:
        """Close the connection of the next response instead of forwarding it."""
        self._loses_response = True

    def _listen(self) -> None:
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                if self._refuses:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed with a reset
                    client.close()
                    self.refused += 1
                    continue
                upstream = socket.create_connection(self._target)
                self._open += [client, upstream]
                threading.Thread(target=_pump, args=(client, upstream, self._wait), daemon=True).start()
                threading.Thread(target=_pump, args=(upstream, client, self._drop_response), daemon=True).start()

    def _wait(self) -> None:
        time.sleep(self.delay)
        self._passes.wait()

    def _drop_response(self) -> None:
        if self._loses_response:
            self._loses_response = False
            raise ConnectionError


def _pump(reading: socket.socket, writing: socket.socket, wait: Callable[[], object]) -> None:
    with contextlib.suppress(OSError):
        while data := reading.recv(65536):
            wait()
            writing.sendall(data)
    with contextlib.suppress(OSError):
        writing.shutdown(socket.SHUT_WR)
