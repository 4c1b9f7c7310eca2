"""Drivers of an all-reduce: one process a task, each told its place and everybody's address."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

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


def report_and_stay(report: dict[str, Any]) -> NoReturn:
    """Print what a driver has found, and stay until it is killed: another one may not have read yet what this one has sent last."""
    print(json.dumps(report), flush=True)
    while True:
        signal.pause()


def reported(task: Task) -> dict[str, Any]:
    """Return what a driver has found."""
    assert task.stdout
    report = json.loads(next((line for line in task.stdout if line.startswith("{")), "{}"))
    assert report, "the driver has ended without a report: see its error above"
    assert isinstance(report, dict)
    return report
