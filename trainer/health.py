"""Whether a task is well, for the health checks of containers: its training process runs, and its port answers.

Asked from outside, by a process of its own in the same container, so that a parent that hangs is noticed too. Linux
alone: it reads /proc. Imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.process_group import DEAD, STOPPED
from trainer.strategies import STRATEGIES
from trainer.tf_config import ConfigurationError, parse, split_address

_PROC = Path("/proc")
_CONNECT_TIMEOUT = 2.0
# The strategies whose tasks serve others at their address; the others have an address and no server.
_SERVING = frozenset(name for name, kind in STRATEGIES.items() if kind.uses_servers or kind.all_reduces)


@dataclass(frozen=True)
class Health:
    """The health of a task, with one line of explanation."""

    healthy: bool
    line: str


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    state: str
    environment: dict[str, str]


def examine(proc: Path = _PROC) -> Health:
    """Return how the task is that this process's TF_CONFIG names. Takes at most a few seconds.

    A task whose training process is between two attempts is not well; nor is one whose server does not answer yet. Of a
    user's own program no more is known than that it runs.
    """
    try:
        task = parse(os.environ.get("TF_CONFIG"), has_master=True)
    except ConfigurationError as error:
        return Health(healthy=False, line=error.problems[0])
    if not (proc / "self" / "stat").exists():
        return Health(healthy=False, line=f"{task.name}: there is no {proc} to read; health is known only on Linux")
    training = _training(proc)
    if training is None:
        return Health(healthy=False, line=f"{task.name}: no training process; it has ended, or is between two attempts")
    what = f"{task.name}: process {training.pid}, attempt {training.environment['TRAINER_ATTEMPT']}"
    if training.state in STOPPED:
        return Health(healthy=False, line=f"{what}, is stopped by a signal; SIGCONT continues it")
    if task.address is None or len(task.tasks()) < 2 or not _serves(training.environment):
        return Health(healthy=True, line=f"{what}, runs")
    port = split_address(task.address)[1]
    if not _answers(port):
        return Health(healthy=False, line=f"{what}, runs, and nothing answers on port {port}; it starts")
    return Health(healthy=True, line=f"{what}, runs and answers on port {port}")


def _training(proc: Path) -> _Process | None:
    """Return the process that the parent of this task started last, None when there is none that lives."""
    own = os.environ.get("TF_CONFIG")
    started = {process.pid: process for process in _processes(proc) if "TRAINER_ATTEMPT" in process.environment}
    first = [process for process in started.values() if process.parent not in started and process.environment.get("TF_CONFIG") == own]
    return max(first, key=lambda process: process.pid, default=None)


def _processes(proc: Path) -> Iterator[_Process]:
    """Yield every process that lives and whose environment this one may read."""
    for directory in proc.iterdir():
        if not directory.name.isdecimal():
            continue
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            # After the name, which is in brackets and may hold anything: state, parent.
            state, parent = (directory / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            raw = (directory / "environ").read_bytes().decode(errors="replace")
            environment = dict(entry.partition("=")[::2] for entry in raw.split("\0") if "=" in entry)
            if state not in DEAD:
                yield _Process(int(directory.name), int(parent), state, environment)


def _serves(environment: dict[str, str]) -> bool:
    """Return whether the trainer's own code runs there as a part of a cluster, and so has a server at the task's address."""
    try:
        settings = json.loads(environment.get("TRAINER_SETTINGS") or "{}")
    except ValueError:
        return False
    return bool(settings.get("train")) and settings.get("strategy") in _SERVING


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_TIMEOUT):
            return True
    except OSError:
        return False
