"""Makes an engine's socket answer on a TCP port of loopback: `python relay.py SOCKET` prints the port, and relays until it is killed."""

import contextlib
import socket
import sys
import threading


def pump(reading: socket.socket, writing: socket.socket) -> None:
    """Pass on what comes, and that it ends."""
    with contextlib.suppress(OSError):
        while data := reading.recv(65536):
            writing.sendall(data)
    with contextlib.suppress(OSError):
        writing.shutdown(socket.SHUT_WR)


def main() -> None:
    """Relay every connection."""
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
