"""Makes an engine's socket answer on a TCP port of loopback: `python relay.py SOCKET` prints the port, and relays until it is killed.

SIGUSR1 makes it lose every connection that there is, without a word to either side, as a network does, and print "lost". New ones are
relayed.
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
    """Pass nothing on any more of the connections that there are, and say so."""
    global lost_at  # noqa: PLW0603 - a signal handler has nowhere else to leave it
    lost_at = time.monotonic()
    os.write(1, b"lost\n")


def pump(reading: socket.socket, writing: socket.socket) -> None:
    """Pass on what comes, and that it ends."""
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
