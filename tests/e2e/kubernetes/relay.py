"""A way to the API server that can be cut: a port of loopback which leads there, or nowhere."""

import contextlib
import socket
import threading


class Relay:
    """Listens as long as it is up; what was connected is cut when it goes down."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._open: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._listen()

    def down(self) -> None:
        """Cut every connection and take no more."""
        for one in [self._server, *self._open]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def up(self) -> None:
        """Listen again, on the same port."""
        self._server = socket.create_server(("127.0.0.1", self.port))
        self._listen()

    def _listen(self) -> None:
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                far = socket.create_connection(self._target)
                self._open += [client, far]
                for pair in ((client, far), (far, client)):
                    threading.Thread(target=_pump, args=pair, daemon=True).start()


def _pump(reading: socket.socket, writing: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := reading.recv(65536):
            writing.sendall(data)
    with contextlib.suppress(OSError):
        writing.shutdown(socket.SHUT_WR)
