"""The ps and worker tasks of parameter_server and manual: TensorFlow servers that run what the chief sends them."""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from trainer.engine.bare_server import server_class
from trainer.loopback import close_to_others
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
    """Tell each ps and worker to stop, by a write placed on the task itself; returns those that could not be told."""
    import tensorflow as tf

    missed = []
    for role in ("worker", "ps"):
        for index in range(len(task.cluster.get(role, ()))):
            name = f"{role}-{index}"
            try:
                with tf.device(f"/job:{role}/replica:0/task:{index}/device:CPU:0"):
                    tf.io.write_file(os.fspath(stop_file(scratch_dir, name)), "done")
            except tf.errors.OpError:
                missed.append(name)
    _await_delivery()
    return missed


def _await_delivery() -> None:
    """Wait until what was sent to other tasks has arrived: TensorFlow does not, and a chief that leaves at once takes with it what is under way.

    On a thread of its own: a task that was cut off would be waited for without end.
    """
    thread = threading.Thread(target=_deliver, name="delivery", daemon=True)
    thread.start()
    thread.join(_DELIVERED_WITHIN)


def _deliver() -> None:
    import tensorflow as tf

    # Who has been told may have ended before it could say so.
    with contextlib.suppress(tf.errors.OpError), tf.experimental.async_scope():
        pass
