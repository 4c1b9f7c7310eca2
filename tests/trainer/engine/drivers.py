"""Parts that drivers share; starts the tasks of an all-reduce, one process for each, and reads their reports."""

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
    """A process of a driver, and its output."""

    process: forked.Process
    stdout: TextIO

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process.pid is not None
        return self.process.pid


def run_driver(driver: Path, *arguments: str | Path) -> dict[str, Any]:
    """Run a driver to its end, and return its report: the last line that it prints, a JSON object. Its exit code may be that of a lost server."""
    result = forked.run([sys.executable, str(driver), *map(str, arguments)], preload=forked.TENSORFLOW)
    start = result.stderr.find("Traceback (most")  # TensorFlow writes much about lost servers after that
    shown = result.stderr[start:][:5000] if start >= 0 else result.stderr[-5000:]
    assert result.stdout, f"{driver.name} has ended with exit code {result.returncode}: {shown}"
    report = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(report, dict)
    return report


@contextmanager
def driven(module: str, count: int) -> Iterator[list[Task]]:
    """Fork `count` processes of a driver beside this file, with the index of each and all addresses as arguments; kill them at the end."""
    driver, addresses = Path(__file__).with_name(module), free_addresses(count)
    with ExitStack() as stack:
        tasks: list[Task] = []
        for index in range(count):
            command = [sys.executable, str(driver), str(index), *addresses]
            process, stdout = forked.piped(command, cwd=Path.cwd(), env=os.environ, preload=forked.TENSORFLOW, errors=2)
            stack.enter_context(stdout)
            stack.callback(process.close)
            stack.callback(process.kill)
            tasks.append(Task(process, stdout))
        yield tasks


def import_frameworks() -> None:
    """Import Keras and TensorFlow as the trainer does: without announcements, and so that the garbage collector skips their objects."""
    from trainer.captured_import import capture_import

    with capture_import():
        import keras  # noqa: F401
        import tensorflow  # noqa: F401, ICN001


def connect_to_servers(tf_config: str) -> Any:
    """Return the chief's connection to its ps and workers. A process can have only one."""
    import_frameworks()
    from trainer.engine.parameter_server.worker_pool import connect
    from trainer.tf_config import parse

    return connect(parse(tf_config))


def keep_sessions() -> None:
    """Disable the garbage collector: it may take a minute to destroy the iterators of a mirrored session.

    Dataset options cannot prevent that (docs/decisions/0022-datasets-are-not-tuned.md); the trainer exits without destroying its only session.
    """
    gc.disable()


def report_and_wait(report: dict[str, Any]) -> NoReturn:
    """Print a driver's report, and wait to be killed: the other task may not have read this task's last message yet."""
    print(json.dumps(report), flush=True)
    while True:
        signal.pause()


def reported(task: Task) -> dict[str, Any]:
    """Return a driver's report."""
    report = json.loads(next((line for line in task.stdout if line.startswith("{")), "{}"))
    assert report, "the driver has ended without a report: see its error above"
    assert isinstance(report, dict)
    return report
