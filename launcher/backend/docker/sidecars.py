"""The sidecars of a run of containers: each shares its task's network, ends with the task, and starts again with it."""

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Any

from docker.errors import APIError
from docker.models.containers import Container

from launcher import timestamps
from launcher.backend.docker.container_tracker import RUNNING
from launcher.backend.docker.engine import ERRORS
from launcher.backend.docker.stop import stop
from launcher.render import labels
from launcher.render.compose_extras import SIDECAR_RESTART
from launcher.runs.state_writer import log_message

_STOP_MARGIN = 10.0  # seconds beyond the grace period in which the engine stops a container


class Sidecars:
    """The sidecars of one run, from the engine's last list."""

    def __init__(self, grace: float) -> None:
        self._grace = round(grace)
        self._by_task: dict[str, list[Container]] = {}
        self._threads: dict[str, threading.Thread] = {}  # by container

    def update(self, containers: Iterable[Container]) -> None:
        """Update from the engine's list of the run's containers."""
        self._by_task = {}
        for container in containers:
            if task := container.labels.get(labels.SIDECAR_OF):
                self._by_task.setdefault(task, []).append(container)

    def stop(self, task: str) -> None:
        """Stop the running sidecars of a task, on threads."""
        for container in self._by_task.get(task, []):
            if container.status in RUNNING:
                self._run_in_thread(container, functools.partial(stop, container, self._grace))

    def restart_outdated(self, task: Container) -> None:
        """Restart the task's sidecars that were started before the task's last start: the network that they share is gone."""
        task_started = timestamps.parse_rfc3339(task.attrs["State"].get("StartedAt"))
        for container in self._by_task.get(task.labels.get(labels.TASK, ""), []):
            started = timestamps.parse_rfc3339(container.attrs["State"].get("StartedAt"))
            if task_started is not None and started is not None and started < task_started:
                self._run_in_thread(container, functools.partial(_restart, container, self._grace))

    def stop_all(self) -> None:
        """Stop all sidecars, and wait until they have stopped. One that does not run by the last list may be in the middle of a restart."""
        self._join()
        for container in itertools.chain.from_iterable(self._by_task.values()):
            self._run_in_thread(container, functools.partial(stop, container, self._grace))
        self._join()

    def _join(self) -> None:
        for thread in self._threads.values():
            thread.join(self._grace + _STOP_MARGIN)

    def _run_in_thread(self, container: Container, operation: Callable[[], object]) -> None:
        key = str(container.id)
        if (thread := self._threads.get(key)) is not None and thread.is_alive():
            return

        def run() -> None:
            try:
                operation()
            except ERRORS as error:
                log_message(f"the sidecar {container.name}: {error}")

        self._threads[key] = threading.Thread(target=run, name=f"sidecar {container.name}", daemon=True)
        self._threads[key].start()


def _restart(container: Container, grace: int) -> None:
    """Restart a sidecar, with the restart policy that a stop may have taken from it. Raises one of engine.ERRORS."""
    policy: Any = {"Name": SIDECAR_RESTART}
    with contextlib.suppress(APIError):  # an engine that refuses this can still restart the container
        container.update(restart_policy=policy)
    container.restart(timeout=grace)
