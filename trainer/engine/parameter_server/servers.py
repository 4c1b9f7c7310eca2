"""The ps and worker tasks of parameter_server and manual: TensorFlow servers that run what the chief sends them."""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from trainer.engine.parameter_server.bare_server import server_class
from trainer.socket_filter import close_to_others
from trainer.tf_config import TaskConfig

_LOOK_EVERY = 0.1  # seconds between looks at the stop file
_DELIVERED_WITHIN = 10.0  # seconds; who has not heard by then ends by its orphan timeout


def stop_file(scratch_dir: str, task_name: str) -> Path:
    """Return the file whose appearance tells a server that the chief is done with it."""
    return Path(scratch_dir) / f"{task_name}.stop"


def serve(task: TaskConfig, scratch_dir: str, stopped: Callable[[], bool]) -> bool:
    """Serve until the chief writes the stop file, or `stopped` tells that this task was asked to stop.

    Returns whether it was the chief.
    """
    told = stop_file(scratch_dir, task.name)
    told.parent.mkdir(parents=True, exist_ok=True)
    if os.environ.get("TRAINER_ATTEMPT", "1") == "1":
        told.unlink(missing_ok=True)  # of an earlier run; a later attempt may find its own
    cluster = {role: list(addresses) for role, addresses in task.cluster.items()}
    # The name keeps it alive: a server that nothing refers to is taken down.
    _server = server_class()(cluster, job_name=task.role, task_index=task.index, protocol="grpc", start=True)
    close_to_others(task.address)
    while not told.exists():
        if stopped():
            return False
        time.sleep(_LOOK_EVERY)
    told.unlink(missing_ok=True)
    return True


def stop_all(task: TaskConfig, scratch_dir: str) -> list[str]:
    """Tell each ps and worker to stop, by a write placed on the task itself; returns those that could not be told within some seconds."""
    disable_blocking_enqueue()
    told: set[str] = set()
    names = {f"{role}-{index}": (role, index) for role in ("worker", "ps") for index in range(len(task.cluster.get(role, ())))}
    # Each on a thread of its own: one that hangs, or was cut off, is waited for without end.
    threads = [
        threading.Thread(target=_tell, args=(role, index, stop_file(scratch_dir, name), lambda name=name: told.add(name)), daemon=True)
        for name, (role, index) in names.items()
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _DELIVERED_WITHIN
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [name for name in names if name not in told]


def disable_blocking_enqueue() -> None:
    """Let TensorFlow wait no more, from now on, until every task has heard of a function, or of the first operation of a kind.

    It tells all of them, and waits by the wish of the coordinator of parameter servers: without end for one that hangs.
    """
    os.environ["TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE"] = "True"  # TensorFlow looks each time


def _tell(role: str, index: int, file: Path, done: Callable[[], None]) -> None:
    import tensorflow as tf

    # Made on the chief: on a task that hangs, no other thread would run until it has them.
    path, content = tf.constant(os.fspath(file)), tf.constant("done")
    with contextlib.suppress(tf.errors.OpError), tf.device(f"/job:{role}/replica:0/task:{index}/device:CPU:0"):
        tf.identity(content).numpy()  # it is there
        tf.io.write_file(path, content)
        # A chief that leaves at once would take with it what is under way: who answers has the write, too. Who was told may have ended
        # before it could answer.
        with contextlib.suppress(tf.errors.OpError):
            tf.identity(content).numpy()
        done()
