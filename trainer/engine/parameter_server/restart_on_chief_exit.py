"""Restarts the process of a ps that holds rows of tables when its chief's process ends.

TensorFlow keeps the resources of a chief on a ps for ten minutes after the chief's end, and the next chief creates all of them again: for
that time a ps would hold its tables twice. So the ps watches a connection to the chief, which the kernel closes when the chief's process ends,
and then re-executes itself. No task needs the ps meanwhile, and the rows are in the last checkpoint.
"""

import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from trainer.engine import connections
from trainer.events import EVENTS_FD_VARIABLE
from trainer.tf_config import TaskConfig

_RENEW_INTERVAL = 10.0  # seconds; gRPC ends a connection on which nothing was said for two minutes
_CONNECT_TIMEOUT = 1.0  # seconds for the chief to take a connection
_KEEP_ALIVE = (5, 5, 3)  # see keep_alive: for a chief whose machine vanished


def rows_marker(scratch_dir: str, task_name: str) -> Path:
    """Return the empty file by which the chief tells a ps that it holds rows, and so has to restart when the chief's process ends."""
    return Path(scratch_dir) / f"{task_name}.rows"


def _restart_process() -> None:
    """Re-execute this process with the arguments, environment and events pipe that its parent gave it."""
    environment = dict(os.environ)
    with suppress(OSError):  # without /proc the events pipe is lost
        initial = Path("/proc/self/environ").read_bytes()
        environment = dict(os.fsdecode(one).split("=", 1) for one in initial.split(b"\0") if b"=" in one)
        if (pipe := environment.get(EVENTS_FD_VARIABLE, "")).isdecimal():
            os.set_inheritable(int(pipe), True)
    os.execve(sys.executable, sys.orig_argv, environment)  # noqa: S606 - this very program


class RestartOnChiefExit:
    """Checks, at each `poll`, whether the chief whose rows this ps holds is alive."""

    def __init__(self, task: TaskConfig, scratch_dir: str) -> None:
        self._file, self._chief = rows_marker(scratch_dir, task.name), task.cluster.get("chief", [""])[0]
        self._file.unlink(missing_ok=True)  # of an earlier process
        self._connection: socket.socket | None = None
        self._renew_at = 0.0

    def poll(self) -> None:
        """Restart this process if the chief's has ended."""
        if self._connection is not None and connections.closed_by_peer(self._connection):
            self._file.unlink(missing_ok=True)
            sys.stdout.flush()
            sys.stderr.flush()
            _restart_process()
        if time.monotonic() >= self._renew_at and self._file.exists():
            self._renew_at = time.monotonic() + _RENEW_INTERVAL
            connection, _ = connections.connect(self._chief, _CONNECT_TIMEOUT)
            if connection is not None:
                connections.keep_alive(connection, *_KEEP_ALIVE)
                if self._connection is not None:
                    self._connection.close()
                self._connection = connection
