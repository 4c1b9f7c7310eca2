"""Creates and starts a run's containers by Compose: all of them or none."""

import contextlib
import time
from contextlib import AbstractContextManager
from http import HTTPStatus
from pathlib import Path

import yaml
from docker.errors import APIError, NotFound
from docker.models.containers import Container

from launcher.backend.docker.container_status import volume_of
from launcher.backend.docker.engine import ERRORS, Engine, compose, translate_errors
from launcher.backend.docker.stop import stop_running
from launcher.errors import LauncherError
from launcher.render import labels

_RETRY_INTERVAL = 0.1
_CLEAR_TIMEOUT = 20.0


def start_containers(
    engine: Engine, run: str, file: Path, timeout: float = 0.0, interruptible: AbstractContextManager[None] | None = None
) -> list[Container]:
    """Have Compose start the services of its file; return the containers. Compose may take `timeout` seconds, at least ten minutes.

    It runs in a `with` block of `interruptible`, from which an exception may come at any time; the rest, such as a removal, is not interrupted.
    Remains of an earlier run are stopped and removed first; if they cannot be stopped, they stay. Raises LauncherError if a container
    cannot be started, and then leaves no container and no network of this run, and its volume only if that existed before.
    """
    action = f"starting the containers of {run}"
    with translate_errors(action):
        had_data = _has_data(engine, run)
        stop_running(engine.containers(run))  # a run without a supervisor may still run: let it save
        engine.remove(run)
    try:
        with interruptible or contextlib.nullcontext():
            compose(run, file, "up", "--detach", "--no-build", "--quiet-pull", action=action, timeout=timeout)
        with translate_errors(action):
            return engine.containers(run)
    except BaseException as error:
        if isinstance(error, LauncherError):
            with contextlib.suppress(*ERRORS):
                error.message += _last_line_of_failed(engine.containers(run))
        with contextlib.suppress(*ERRORS):
            _clear(engine, run, file)
            # After the containers: one that is being created would create its volume again.
            for volume in () if had_data else engine.volumes(run):
                volume.remove()
        raise


def _last_line_of_failed(containers: list[Container]) -> str:
    """Return `: ` and the last log line of the first failed container that a task waited for; empty if none failed."""
    for container in containers:
        if _runs_before_a_task(container) and container.attrs["State"].get("ExitCode"):
            line = container.logs(tail=1).decode("utf-8", "replace").strip()
            return f": {line}" if line else ""
    return ""


def _runs_before_a_task(container: Container) -> bool:
    """Return whether a task waits for a container's end: it is an init container, or prepares volumes."""
    is_auxiliary = labels.SIDECAR_OF in container.labels or container.labels.get(labels.SERVICE) == labels.TENSORBOARD
    return labels.SERVICE in container.labels and not is_auxiliary


def _clear(engine: Engine, run: str, file: Path) -> None:
    """Remove the run's containers and networks, also those that the engine is still creating: Compose exits at the first error without waiting.

    The engine reserves a container's name before it creates the container. So once a container of our own has got that name, the service's
    container is no longer being created.
    """
    deadline = time.monotonic() + _CLEAR_TIMEOUT
    try:
        images = engine.client.api.images(quiet=True)
        for service in yaml.safe_load(file.read_text())["services"] if images else ():
            while time.monotonic() < deadline and not _occupy_name(engine, run, service, images[0]):
                time.sleep(_RETRY_INTERVAL)
    finally:  # also if the engine can create no more containers, for example on a full disk
        engine.remove(run)


def _occupy_name(engine: Engine, run: str, service: str, image: str) -> bool:
    """Occupy the name of a service's container, so that the engine cannot be creating it; return whether that succeeded. Raises one of ERRORS.

    A container of the run that has the name is removed first; one that is not of the run counts as success.
    """
    name = f"{run}-{service}-1"
    try:
        engine.client.api.create_container(image, ["true"], name=name, labels={labels.RUN: run})
    except APIError as error:
        if error.status_code != HTTPStatus.CONFLICT:
            raise
    else:
        return True
    try:
        container = engine.client.containers.get(name)
        if container.labels.get(labels.RUN) != run:
            return True
        container.remove(force=True, v=True)
    except APIError as error:
        if error.status_code not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:  # it is still being created, or is being removed
            raise
    return False


def _has_data(engine: Engine, run: str) -> bool:
    """Return whether the run's volume exists. Raises LauncherError if a volume of that name is not the run's: Compose would use it."""
    name = volume_of(run)
    try:
        volume = engine.client.volumes.get(name)
    except NotFound:
        return False
    if (volume.attrs.get("Labels") or {}).get(labels.RUN) != run:
        raise LauncherError(
            f"the engine has a volume {name} that does not belong to a run called {run}",
            f"give the run another name, or see what created the volume: docker volume inspect {name}",
        )
    return True
