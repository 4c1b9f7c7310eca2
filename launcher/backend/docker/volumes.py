"""A run's volume kept under another name, out of a new run's way."""

import contextlib
import time

from docker.types import Mount

from launcher import images
from launcher.backend.docker.engine import COPY, ERRORS, Engine
from launcher.backend.docker.look import volume_of
from launcher.backend.docker.problems import explain
from launcher.backend.docker.task import OVER
from launcher.errors import LauncherError
from launcher.render import labels
from launcher.spec.models import ClusterSpec

ASIDE = f"{labels.PREFIX}set-aside"  # of which run
_COPIED_WITHIN = 3600.0
_LOOK_AGAIN = 0.2


def set_aside(engine: Engine, name: str, aside: str, spec: ClusterSpec | None) -> str:
    """Copy a run's volume to one called after `aside`, remove the old one, and say where it is; empty when there is none.

    Volumes cannot be renamed, so a container of the run's own image copies what is there. Raises one of engine.ERRORS.
    """
    # By its label: a volume of that name may be another project's, and somebody's.
    found = engine.volumes(name)
    if not found:
        return ""
    old = found[0]
    image = images.image_for(spec) if spec is not None else images.DEFAULT_IMAGE
    if images.find(image) is None:
        raise LauncherError(f"the image {image} is not there, and a container of it is to copy the old run", images.build_command(image))
    new = volume_of(aside)
    try:
        _copy(engine, image, name, old.name, new)
    except BaseException:  # an interrupt, too
        with contextlib.suppress(*ERRORS):
            engine.client.volumes.get(new).remove()
        raise
    old.remove()
    return f"volume {new}"


def _copy(engine: Engine, image: str, run: str, old: str, new: str) -> None:
    """Copy all of a volume to a new one, with owners and rights; leaves no container. Raises LauncherError or one of engine.ERRORS."""
    copying = engine.client.containers.create(
        image,
        entrypoint=["cp"],
        command=["-a", "/from/.", "/to/"],
        user="0:0",
        network_mode="none",
        mounts=[Mount("/from", old, read_only=True), Mount("/to", new, labels={ASIDE: run})],
        labels={COPY: run},
    )
    try:
        copying.start()
        copying.reload()
        deadline = time.monotonic() + _COPIED_WITHIN
        while copying.status not in OVER:  # somebody may pause it
            if time.monotonic() >= deadline:
                raise LauncherError(
                    f"copying the volume {old} was not done after {_COPIED_WITHIN:g} s; it is as it was",
                    "give the new run another name, or delete the old data: `launcher down` with --delete-data",
                )
            time.sleep(_LOOK_AGAIN)
            copying.reload()
        if copying.status == "dead" or copying.attrs["State"]["ExitCode"]:
            said = copying.logs().decode("utf-8", "replace")
            raise explain(said or "cp failed without a word", f"copying the volume {old}")
    finally:
        copying.remove(force=True)
