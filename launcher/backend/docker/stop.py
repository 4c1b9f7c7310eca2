"""Stops containers for good: they are asked to save and exit, and the engine never starts them again."""

import contextlib
import threading
import time
from collections.abc import Iterable
from typing import Any

from docker.errors import APIError, NotFound
from docker.models.containers import Container

from launcher.backend.docker.container_status import by_task
from launcher.backend.docker.container_tracker import RUNNING
from launcher.backend.docker.engine import ERRORS
from launcher.errors import LauncherError

# Seconds beyond its grace period in which a container stops: a stop is up to four requests, of which each has the client's timeout.
_STOP_MARGIN = 300.0


def stop(container: Container, grace: int) -> None:
    """Have the engine stop a container in any state, and kill it after `grace` seconds. Raises one of engine.ERRORS."""
    is_prevented = False
    with contextlib.suppress(APIError):  # an engine that refuses this can still stop the container
        prevent_restart(container)
        is_prevented = True
    if container.status == "paused":
        with contextlib.suppress(APIError):  # it was unpaused meanwhile
            container.unpause()
    # Also a container that has exited: the engine may be about to start it again.
    container.stop(timeout=grace)
    if not is_prevented:  # the engine refuses an update of a container that exits at that moment
        with contextlib.suppress(APIError):
            prevent_restart(container)


def prevent_restart(container: Container) -> None:
    """Tell the engine not to start a container again, neither by itself nor when the engine restarts. Raises one of engine.ERRORS."""
    never: Any = {"Name": "no"}
    container.update(restart_policy=never)


def stop_running(containers: Iterable[Container]) -> bool:
    """Stop the running tasks, each within its own grace period, and wait for them; return whether any ran.

    Raises LauncherError or one of engine.ERRORS if one cannot be stopped.
    """
    running = [container for container in by_task(containers).values() if container.status in RUNNING]
    errors: list[Exception] = []
    threads = [threading.Thread(target=_stop, args=(container, errors), daemon=True) for container in running]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for container, thread in zip(running, threads, strict=True):
        timeout = grace_of(container) + _STOP_MARGIN
        thread.join(max(0.0, began + timeout - time.monotonic()))
        if thread.is_alive():
            raise LauncherError(
                f"the container {container.name} does not stop: the engine has not ended it within {timeout:g} s",
                f"read `docker logs {container.name}`, end it with `docker kill {container.name}`, then try again",
            )
    if errors:
        raise errors[0]
    return bool(running)


def _stop(container: Container, errors: list[Exception]) -> None:
    try:
        stop(container, grace_of(container))
    except NotFound:
        pass  # it is gone, so there is nothing to stop
    except ERRORS as error:
        errors.append(error)


def grace_of(container: Container) -> int:
    """Return the seconds that a container has to stop by itself."""
    return int(container.attrs["Config"].get("StopTimeout") or 30)
