"""Shared parts of tests that start programs and talk to them."""

import contextlib
import os
import socket
import subprocess
from pathlib import Path


def end(process: "subprocess.Popen[bytes]", seconds: float = 20) -> None:
    """Ask a process to end, and kill it if it still runs after `seconds`."""
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


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    if not Path("/proc/self").exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            return True
    return False
