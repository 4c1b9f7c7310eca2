"""A run's volume kept under another name, out of a new run's way."""

from launcher import images
from launcher.backend.docker.engine import ERRORS, Engine
from launcher.backend.docker.look import volume_of
from launcher.backend.docker.problems import explain
from launcher.errors import LauncherError
from launcher.render import labels
from launcher.spec.models import ClusterSpec

ASIDE = f"{labels.PREFIX}set-aside"  # of which run


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
    new = engine.client.volumes.create(volume_of(aside), labels={ASIDE: name})
    try:
        _copy(engine, image, old.name, new.name)
    except (LauncherError, *ERRORS):
        new.remove()
        raise
    old.remove()
    return f"volume {new.name}"


def _copy(engine: Engine, image: str, old: str, new: str) -> None:
    """Copy all of a volume to another, with owners and rights; leaves no container. Raises LauncherError or one of engine.ERRORS."""
    copying = engine.client.containers.create(
        image,
        entrypoint=["cp"],
        command=["-a", "/from/.", "/to/"],
        user="0:0",
        network_mode="none",
        volumes={old: {"bind": "/from", "mode": "ro"}, new: {"bind": "/to", "mode": "rw"}},
    )
    try:
        copying.start()
        if copying.wait()["StatusCode"]:
            said = copying.logs().decode("utf-8", "replace")
            raise explain(said or "cp failed without a word", f"copying the volume {old}")
    finally:
        copying.remove(force=True)
