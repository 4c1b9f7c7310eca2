"""Drivers of an all-reduce: one process a task, each told its place and everybody's address."""

import gc
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO

from benchmarks.processes import free_addresses
from tests import forked


@dataclass(frozen=True)
class Task:
    """A process of a driver, and what it writes."""

    process: forked.Process
    stdout: TextIO

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process.pid is not None
        return self.process.pid


@contextmanager
def driven(module: str, count: int) -> Iterator[list[Task]]:
    """Fork `count` processes of a driver beside this file; kill what is left of them at the end."""
    driver, addresses = Path(__file__).with_name(module), free_addresses(count)
    with ExitStack() as stack:
        tasks: list[Task] = []
        for index in range(count):
            words = [sys.executable, str(driver), str(index), *addresses]
            process, stdout = forked.piped(words, cwd=Path.cwd(), env=os.environ, engine=forked.TENSORFLOW, errors=2)
            stack.enter_context(stdout)
            stack.callback(process.close)
            stack.callback(process.kill)
            tasks.append(Task(process, stdout))
        yield tasks


def keep_sessions() -> None:
    """Collect no session, each of which is in a cycle of references: a mirrored one has an iterator for each device, whose end may take a minute.

    No options of ours reach those (docs/decisions/0022-datasets-are-not-tuned.md); the trainer itself leaves with its one session.
    """
    gc.disable()


def report_and_stay(report: dict[str, Any]) -> NoReturn:
    """Print what a driver has found, and stay until it is killed: another one may not have read yet what this one has sent last."""
    print(json.dumps(report), flush=True)
    while True:
        signal.pause()


def reported(task: Task) -> dict[str, Any]:
    """Return what a driver has found."""
    report = json.loads(next((line for line in task.stdout if line.startswith("{")), "{}"))
    assert report, "the driver has ended without a report: see its error above"
    assert isinstance(report, dict)
    return report
