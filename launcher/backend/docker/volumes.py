"""A run's volume kept under another name, and its containers stopped, where no keeper does it."""

import contextlib
import threading
from collections.abc import Iterable
from typing import Any

from docker.errors import NotFound
from docker.models.containers import Container

from launcher import images
from launcher.backend.docker.engine import ERRORS, Engine
from launcher.backend.docker.look import volume_of
from launcher.errors import LauncherError
from launcher.render import labels
from launcher.spec.models import ClusterSpec

ASIDE = f"{labels.PREFIX}set-aside"  # of which run
_STOP_WAIT = 600.0


def stop_all(containers: Iterable[Container]) -> None:
    """Ask all containers to stop, each within its own grace period, and wait until they have. Raises one of ERRORS."""
    threads = [threading.Thread(target=_stop, args=(container,), daemon=True) for container in containers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_STOP_WAIT)


def _stop(container: Any) -> None:
    with contextlib.suppress(*ERRORS):  # who does not stop is removed, and that fails aloud
        if container.status == "paused":
            container.unpause()
        container.stop(timeout=int(container.attrs["Config"].get("StopTimeout") or 30))


def set_aside(engine: Engine, name: str, aside: str, spec: ClusterSpec | None) -> str:
    """Copy a run's volume to one called after `aside`, remove the old one, and say where it is; empty when there is none.

    Volumes cannot be renamed, so a container of the run's own image copies what is there. Raises one of engine.ERRORS.
    """
    try:
        old = engine.client.volumes.get(volume_of(name))
    except NotFound:
        return ""
    image = images.image_for(spec) if spec is not None else images.DEFAULT_IMAGE
    if images.find(image) is None:
        raise LauncherError(f"the image {image} is not there, and a container of it is to copy the old run", images.build_command(image))
    new = engine.client.volumes.create(volume_of(aside), labels={ASIDE: name})
    try:
        engine.client.containers.run(
            image,
            entrypoint=["cp"],
            command=["-a", "/from/.", "/to/"],
            user="0:0",
            network_mode="none",
            remove=True,
            volumes={old.name: {"bind": "/from", "mode": "ro"}, new.name: {"bind": "/to", "mode": "rw"}},
        )
    except ERRORS:
        new.remove()
        raise
    old.remove()
    return f"volume {new.name}"
