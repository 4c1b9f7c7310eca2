"""A run's containers made and started by Compose, all of them or none."""

import contextlib
import time
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


def start_containers(engine: Engine, run: str, file: Path, within: float = 0.0) -> list[Container]:
    """Have Compose start what its file says; return the containers. Init containers have `within` seconds, or ten minutes if those are more.

    Leftovers of an earlier run are stopped and removed first. Raises LauncherError when one cannot be started; nothing of this run
    is left then: no container, no network, and no volume but one that was there before.
    """
    doing = f"starting the containers of {run}"
    had_data = True
    try:
        with translate_errors(doing):
            had_data = _has_data(engine, run)
            stop_running(engine.containers(run))  # one without a supervisor saves what it has
            engine.remove(run)
        compose(run, file, "up", "--detach", "--no-build", "--quiet-pull", doing=doing, within=within)
        with translate_errors(doing):
            return engine.containers(run)
    except BaseException as error:
        if isinstance(error, LauncherError):
            with contextlib.suppress(*ERRORS):
                error.message += _last_line_of_failed(engine.containers(run))
        with contextlib.suppress(*ERRORS):
            _clear(engine, run, file)
            for volume in () if had_data else engine.volumes(run):
                volume.remove()
        raise


def _last_line_of_failed(containers: list[Container]) -> str:
    """Return the last line of the first container that failed before a task, for the end of a message; its container is removed now."""
    for container in containers:
        if _is_before_a_task(container) and container.attrs["State"].get("ExitCode"):
            lines = container.logs(tail=1).decode("utf-8", "replace").strip()
            return f": {lines}" if lines else ""
    return ""


def _is_before_a_task(container: Container) -> bool:
    """Return whether a task waits for a container's end: an init container, or what prepares volumes."""
    is_auxiliary = labels.SIDECAR_OF in container.labels or container.labels.get(labels.SERVICE) == labels.TENSORBOARD
    return labels.SERVICE in container.labels and not is_auxiliary


def _clear(engine: Engine, run: str, file: Path) -> None:
    """Remove all that the run has, also what the engine is still making: Compose leaves at the first error and does not wait for the rest.

    The engine reserves a container's name before it makes anything of it: none is on its way once another, never started, has its name.
    Volumes go last, since a container that is being made would make its own once more.
    """
    deadline = time.monotonic() + _CLEAR_TIMEOUT
    try:
        images = engine.client.api.images(quiet=True)
        for service in yaml.safe_load(file.read_text())["services"] if images else ():
            while time.monotonic() < deadline and not _takes_name(engine, run, service, images[0]):
                time.sleep(_RETRY_INTERVAL)
    finally:  # also where the engine makes no container more, on a full disk
        engine.remove(run)


def _takes_name(engine: Engine, run: str, service: str, image: str) -> bool:
    """Remove a service's container where it is made; return whether one of any image has its name now, or one not of the run. Raises one of ERRORS."""
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
        if error.status_code not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:  # it is not made yet, or is being removed
            raise
    return False


def _has_data(engine: Engine, run: str) -> bool:
    """Return whether the run's volume is there. Raises LauncherError where one of its name is not the run's: Compose would take it."""
    name = volume_of(run)
    try:
        volume = engine.client.volumes.get(name)
    except NotFound:
        return False
    if (volume.attrs.get("Labels") or {}).get(labels.RUN) != run:
        raise LauncherError(
            f"the engine has a volume {name} that is not of a run called {run}",
            f"give the run another name, or see whose it is: docker volume inspect {name}",
        )
    return True
