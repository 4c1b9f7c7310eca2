"""The sidecars of a run of containers: each ends with its task, and starts again with it, whose network it shares."""

import functools
import threading
from collections.abc import Callable, Iterable

from docker.models.containers import Container

from launcher import timestamps
from launcher.backend.docker.engine import ERRORS
from launcher.backend.docker.stop import stop
from launcher.render import labels
from launcher.runs.state_writer import log_message

_SLACK = 10.0  # seconds beyond the grace period in which the engine stops a container


class Sidecars:
    """The sidecars of one run, as the engine listed them last."""

    def __init__(self, grace: float) -> None:
        self._grace = round(grace)
        self._of: dict[str, list[Container]] = {}
        self._busy: dict[str, threading.Thread] = {}  # by container

    def update(self, containers: Iterable[Container]) -> None:
        """Take in what the engine lists."""
        self._of = {}
        for container in containers:
            if task := container.labels.get(labels.SIDECAR_OF):
                self._of.setdefault(task, []).append(container)

    def stop(self, task: str) -> None:
        """Have those of a task that run stopped, on threads."""
        for container in self._of.get(task, []):
            if container.status in {"running", "restarting", "paused"}:
                self._begin(container, functools.partial(stop, container, self._grace))

    def restart_outdated(self, task: Container) -> None:
        """Have those that run since before their task was started last started again: they are on a network that is gone."""
        since = timestamps.parse_rfc3339(task.attrs["State"].get("StartedAt"))
        for container in self._of.get(task.labels.get(labels.TASK, ""), []):
            started = timestamps.parse_rfc3339(container.attrs["State"].get("StartedAt"))
            if since is not None and started is not None and started < since:
                self._begin(container, functools.partial(container.restart, timeout=self._grace))

    def end(self) -> None:
        """Stop all of them, and wait until they have stopped."""
        for task in self._of:
            self.stop(task)
        for thread in self._busy.values():
            thread.join(self._grace + _SLACK)

    def _begin(self, container: Container, do: Callable[[], object]) -> None:
        key = str(container.id)
        if (thread := self._busy.get(key)) is not None and thread.is_alive():
            return

        def begin() -> None:
            try:
                do()
            except ERRORS as error:
                log_message(f"the sidecar {container.name}: {error}")

        self._busy[key] = threading.Thread(target=begin, name=f"sidecar {container.name}", daemon=True)
        self._busy[key].start()
