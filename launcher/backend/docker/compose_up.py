"""A run's containers made and started by Compose, all of them or none."""

import contextlib
import time
from pathlib import Path

from docker.errors import NotFound
from docker.models.containers import Container

from launcher.backend.docker.container_status import volume_of
from launcher.backend.docker.engine import ERRORS, Engine, compose, translate_errors
from launcher.backend.docker.stop import stop_running
from launcher.errors import LauncherError
from launcher.render import labels

_LATE = 1.5  # seconds without a container more, after which none is expected
_RETRY_INTERVAL = 0.3
_CLEAR_TIMEOUT = 20.0


def begin(engine: Engine, run: str, file: Path, within: float = 0.0) -> list[Container]:
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
            _clear(engine, run)
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


def _clear(engine: Engine, run: str) -> None:
    """Remove what the run has, and what comes yet: Compose leaves at the first error, and the engine still makes what it was asked for beside."""
    began = time.monotonic()
    quiet_at, deadline = began + _LATE, began + _CLEAR_TIMEOUT
    engine.remove(run)
    while time.monotonic() < min(quiet_at, deadline):
        time.sleep(_RETRY_INTERVAL)
        if engine.containers(run):
            quiet_at = time.monotonic() + _LATE
            engine.remove(run)


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
