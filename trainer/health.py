"""The health of a task, for the health checks of containers: its training process runs, and its port answers.

A process of its own in the same container checks it. Only for Linux: it reads /proc. Imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.process_group import DEAD, SUSPENDED, stat_fields
from trainer.strategies import STRATEGIES
from trainer.tf_config import ConfigurationError, parse, split_address

_PROC = Path("/proc")
_CONNECT_TIMEOUT = 2.0
# The strategies whose tasks run a server at their address.
_SERVING = frozenset(name for name, traits in STRATEGIES.items() if traits.uses_servers or traits.all_reduces)


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
    """Return the health of the task that this process's TF_CONFIG names. Takes at most a few seconds.

    A task between two attempts is not healthy; nor is one whose server does not answer yet. A user's own program is
    healthy if it runs.
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
    process = f"{task.name}: process {training.pid}, attempt {training.environment['TRAINER_ATTEMPT']}"
    if training.state in SUSPENDED:
        return Health(healthy=False, line=f"{process}, is stopped by a signal; SIGCONT continues it")
    if task.address is None or len(task.tasks()) < 2 or not _serves(training.environment):
        return Health(healthy=True, line=f"{process}, runs")
    port = split_address(task.address)[1]
    if not _answers(port):
        return Health(healthy=False, line=f"{process}, runs, and nothing answers on port {port}; it starts")
    return Health(healthy=True, line=f"{process}, runs and answers on port {port}")


def _training(proc: Path) -> _Process | None:
    """Return the process that this task's parent started last, None if none lives."""
    tf_config = os.environ.get("TF_CONFIG")
    started = {process.pid: process for process in _processes(proc) if "TRAINER_ATTEMPT" in process.environment}
    first = [process for process in started.values() if process.parent not in started and process.environment.get("TF_CONFIG") == tf_config]
    return max(first, key=lambda process: process.pid, default=None)


def _processes(proc: Path) -> Iterator[_Process]:
    """Yield every live process with a readable environment."""
    for directory in proc.iterdir():
        if not directory.name.isdecimal():
            continue
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            state, parent = stat_fields(directory / "stat")[:2]
            raw = (directory / "environ").read_bytes().decode(errors="replace")
            environment = dict(entry.partition("=")[::2] for entry in raw.split("\0") if "=" in entry)
            if state not in DEAD:
                yield _Process(int(directory.name), int(parent), state, environment)


def _serves(environment: dict[str, str]) -> bool:
    """Return whether a process with this environment is the built-in trainer's in a cluster, and so has a server at the task's address."""
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
