"""The ps and worker tasks of parameter_server and manual: TensorFlow servers that run the chief's operations."""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType

from trainer.engine.parameter_server.bare_server import server_class
from trainer.engine.parameter_server.restart_on_chief_exit import RestartOnChiefExit
from trainer.socket_filter import restrict_to_loopback
from trainer.tf_config import TaskConfig

_POLL_INTERVAL = 0.1  # seconds between checks of the stop file
_TRIES = 3  # to notify a server
_DELIVERY_TIMEOUT = 10.0  # seconds; a server that the message does not reach by then ends after its orphan timeout
# Contents of a stop file: the run is done; or its chief has saved, and no longer needs this server, which was asked to stop.
_DONE, _SAVED = "done", "saved"
# A SIGTERM this soon after SIGURG belongs to the same stop; the parent's own comes later (parent.py:_CHIEF_TIMEOUT).
_SAME_STOP_SECONDS = 0.4
_SIGURG_DELAY = 2.0  # seconds after SIGTERM in which SIGURG of the same stop may come
# Seconds that a server continues after it was asked to stop. A worker has no state, but a chief that is asked at the same time ends its
# calls first; a ps waits for its chief, as long as its parent allows.
_STOP_DELAY = {"worker": 3.0, "ps": math.inf}


def stop_file(scratch_dir: str, task_name: str) -> Path:
    """Return the file whose appearance informs a server that the chief is done with it."""
    return Path(scratch_dir) / f"{task_name}.stop"


def leaving_file(scratch_dir: str, task_name: str) -> Path:
    """Return the file whose appearance informs the chief that a server was asked to stop, and serves until the chief has saved."""
    return Path(scratch_dir) / f"{task_name}.leaving"


def serve(task: TaskConfig, scratch_dir: str, stop_requested: Callable[[], bool]) -> bool:
    """Serve until the chief writes the stop file, or the parent ends this task by SIGTERM. Returns whether the run is done.

    A task that is asked to stop first gets SIGURG from its parent: it informs its chief, and continues. `stop_requested` returns whether a stop was
    requested before this call. Handles this process's signals.
    """
    if stop_requested():
        return False
    signals = _Signals()
    stop_path, leaving = stop_file(scratch_dir, task.name), leaving_file(scratch_dir, task.name)
    stop_path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        leaving.unlink(missing_ok=True)
    if os.environ.get("TRAINER_ATTEMPT", "1") == "1":
        stop_path.unlink(missing_ok=True)  # of an earlier run; a later attempt may find its own
    cluster = {role: list(addresses) for role, addresses in task.cluster.items()}
    # Before a chief can write the file that it looks for.
    restart_check = RestartOnChiefExit(task, scratch_dir) if task.role == "ps" else None
    # The name keeps it alive: TensorFlow shuts down a server that has no reference.
    _server = server_class()(cluster, job_name=task.role, task_index=task.index, protocol="grpc", start=True)
    restrict_to_loopback(task.address)
    until: float | None = None
    while not (message := _read_message(stop_path)):
        if signals.stop_requested_at is not None and until is None:
            until = time.monotonic() + _STOP_DELAY[task.role]
            with contextlib.suppress(OSError):  # on a full disk: the chief learns of it by its own stop, or only at the end
                leaving.touch()
        if signals.must_end or (until is not None and time.monotonic() > until):
            return False
        if restart_check is not None:
            restart_check.poll()
        time.sleep(_POLL_INTERVAL)
    stop_path.unlink(missing_ok=True)
    return message == _DONE


class _Signals:
    """The signals that this process gets: SIGURG from its parent, which was asked to stop; SIGTERM, which ends it.

    If all processes of a run are stopped at once, e.g. by systemd, this one gets SIGTERM from there and SIGURG from its parent at the same
    time. That SIGTERM is ignored, because the chief has not saved yet; the parent's own comes later. Times are of time.monotonic.
    """

    def __init__(self) -> None:
        self.stop_requested_at: float | None = None
        self._terminations: list[float] = []
        signal.signal(signal.SIGURG, self._note_stop)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note_termination)

    def _note_stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stop_requested_at = self.stop_requested_at or time.monotonic()

    def _note_termination(self, _number: int, _frame: FrameType | None) -> None:
        self._terminations.append(time.monotonic())

    @property
    def must_end(self) -> bool:
        """Whether this process is to end now."""
        if len(self._terminations) != 1:
            return bool(self._terminations)  # the parent repeats it
        if self.stop_requested_at is None:
            return time.monotonic() - self._terminations[0] > _SIGURG_DELAY
        return self._terminations[0] - self.stop_requested_at > _SAME_STOP_SECONDS


def _read_message(file: Path) -> str:
    """Return the content of a file; empty while it does not exist, or is not written yet."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


def stop_all(task: TaskConfig, scratch_dir: str) -> list[str]:
    """Notify each ps and worker that the run is done; returns those that could not be notified within some seconds."""
    names = [f"{role}-{index}" for role in ("worker", "ps") for index in range(len(task.cluster.get(role, ())))]
    return _notify_all(names, scratch_dir, _DONE)


def notify_saved(leaving: Collection[str], scratch_dir: str) -> list[str]:
    """Notify servers that were asked to stop that their state is saved; returns those that could not be notified within some seconds."""
    return _notify_all(leaving, scratch_dir, _SAVED)


def _notify_all(names: Collection[str], scratch_dir: str, message: str) -> list[str]:
    disable_blocking_enqueue()
    notified: set[str] = set()
    # Each on a thread of its own: the call to a server that hangs, or is cut off, never returns.
    threads = [
        threading.Thread(
            target=_notify, args=(name, stop_file(scratch_dir, name), message, lambda name=name: notified.add(name)), daemon=True
        )
        for name in names
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _DELIVERY_TIMEOUT
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [name for name in names if name not in notified]


def disable_blocking_enqueue() -> None:
    """Let TensorFlow no longer wait until every task has received a function, or the first operation of a kind.

    It sends these to all tasks, and the coordinator of parameter servers has it wait for all of them: forever for one that hangs.
    """
    os.environ["TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE"] = "True"  # TensorFlow reads it each time


def _notify(name: str, file: Path, message: str, done: Callable[[], None]) -> None:
    """Write a server's stop file, by an operation that is placed on the server."""
    import tensorflow as tf

    role, _, index = name.partition("-")
    # Created on the chief: on a task that hangs, their creation would block all other threads.
    path, content = tf.constant(os.fspath(file)), tf.constant(message)
    # TensorFlow sends the first operation of a kind to every task: it fails if one of them has just ended, as it was asked to.
    for _ in range(_TRIES):
        with contextlib.suppress(tf.errors.OpError), tf.device(f"/job:{role}/replica:0/task:{index}/device:CPU:0"):
            tf.identity(content).numpy()  # the server answers
            tf.io.write_file(path, content)
            # A chief that exits at once would cancel the write. A server that answers has received it; it may also have ended before it
            # could answer.
            with contextlib.suppress(tf.errors.OpError):
                tf.identity(content).numpy()
            done()
            return
        time.sleep(_POLL_INTERVAL)
