"""Starts the tasks of a baseline as processes of this machine."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence


def free_addresses(count: int) -> list[str]:
    """Return free loopback addresses; all sockets stay open until the end, so the ports differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for held in sockets:
            held.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{held.getsockname()[1]}" for held in sockets]


@contextlib.contextmanager
def started(
    module: str, tasks: Sequence[tuple[str, int]], options: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start `module` once for each (job, index), with `--job`, `--index` and `options`; kill those that still run afterwards."""
    processes = []
    try:
        for job, index in tasks:
            command = [sys.executable, "-m", module, "--job", job, "--index", str(index), *options]
            # memory.py identifies the process by BENCH_TASK.
            own = {**os.environ, **(environment or {}), "BENCH_TASK": f"{job}-{index}"}
            processes.append(subprocess.Popen(command, env=own))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
