"""Drivers of an all-reduce: one process a task, each told its place and everybody's address."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.processes import free_addresses

Task = subprocess.Popen[str]


@contextmanager
def driven(module: str, count: int) -> Iterator[list[Task]]:
    """Start `count` processes of a driver beside this file; kill what is left of them at the end."""
    driver, addresses = Path(__file__).with_name(module), free_addresses(count)
    with ExitStack() as stack:
        tasks: list[Task] = []
        for index in range(count):
            command = [sys.executable, str(driver), str(index), *addresses]
            tasks.append(stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path.cwd())))
            stack.callback(tasks[-1].kill)
        yield tasks
