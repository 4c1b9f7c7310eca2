"""Shared parts of tests that start programs and talk to them."""

import socket
import subprocess


def end(process: "subprocess.Popen[bytes]", seconds: float = 20) -> None:
    """Ask a process to end, and kill it where it has not after `seconds`."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """Return a port of loopback that nothing uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
