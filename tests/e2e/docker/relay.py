"""Relays a TCP port of loopback to an engine's socket: `python relay.py SOCKET` prints the port, and runs until it is killed.

On SIGUSR1 it silently stops relaying all current connections, as a failed network does, and prints "lost". New connections are relayed.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time

lost_at = 0.0


def lose(*_: object) -> None:
    """Stop relaying all current connections, and print that."""
    global lost_at  # noqa: PLW0603 - a signal handler has nowhere else to leave it
    lost_at = time.monotonic()
    os.write(1, b"lost\n")


def pump(reading: socket.socket, writing: socket.socket) -> None:
    """Relay the data of one direction, and its end."""
    began = time.monotonic()
    with contextlib.suppress(OSError):
        while data := reading.recv(65536):
            if began > lost_at:
                writing.sendall(data)
    if began <= lost_at:
        return
    with contextlib.suppress(OSError):
        writing.shutdown(socket.SHUT_WR)


def main() -> None:
    """Relay every connection."""
    signal.signal(signal.SIGUSR1, lose)
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            client, _ = server.accept()
            engine = socket.socket(socket.AF_UNIX)
            engine.connect(sys.argv[1])
            for pair in ((client, engine), (engine, client)):
                threading.Thread(target=pump, args=pair, daemon=True).start()


if __name__ == "__main__":
    main()
