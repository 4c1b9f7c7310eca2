"""A run's volume: kept under another name, out of a new run's way, and read from here."""

import contextlib
import http.client
import time
from collections.abc import Iterator

import requests
from docker.errors import NotFound, create_api_error_from_http_exception
from docker.types import Mount

from launcher import images
from launcher.backend.docker.container_status import volume_of
from launcher.backend.docker.container_tracker import EXITED
from launcher.backend.docker.engine import COPY, ERRORS, READER, TIMEOUT, Engine
from launcher.backend.docker.errors import explain
from launcher.errors import LauncherError
from launcher.plan.container_paths import CONTAINER_RUNS
from launcher.render import labels
from launcher.runs.status import Location
from launcher.runs.stored import ARTIFACT_DIRECTORIES, Artifact, Stored, missing_artifact
from launcher.spec.models import ClusterSpec

RENAMED_FROM = f"{labels.PREFIX}set-aside"  # of which run
_COPY_TIMEOUT = 3600.0
_POLL_INTERVAL = 0.2
_PIECE = 1 << 20  # bytes


def rename(engine: Engine, name: str, new_name: str, spec: ClusterSpec | None) -> Location | None:
    """Copy a run's volume to one called after `new_name`, remove the old one, and return the new one; None when there is none.

    Volumes cannot be renamed, so a container of the run's own image copies what is there. Raises one of engine.ERRORS.
    """
    # By its label: a volume of that name may be another project's, and somebody's.
    found = engine.volumes(name)
    if not found:
        return None
    old = found[0]
    image = images.image_for(spec) if spec is not None else images.DEFAULT_IMAGE
    if images.find(image) is None:
        raise LauncherError(f"the image {image} is not there, and a container of it is to copy the old run", images.build_command(image))
    new = volume_of(new_name)
    try:
        _copy(engine, image, name, old.name, new)
    except BaseException:  # an interrupt, too
        with contextlib.suppress(*ERRORS):
            engine.client.volumes.get(new).remove()
        raise
    engine.remove_readers(name)
    old.remove()
    return Location("volume", new)


@contextlib.contextmanager
def opened(engine: Engine, name: str, artifact: Artifact, spec: ClusterSpec | None) -> Iterator[Stored]:
    """Open for a `with` block what a run's volume has of a kind, as the engine sends it. Raises UsageError, or one of engine.ERRORS.

    The engine reads the volumes of a container, also of one that never runs; so any image will do.
    """
    [volume, *_] = engine.volumes(name)
    container = engine.client.containers.create(
        _any_image(engine, spec),
        entrypoint=["true"],
        network_mode="none",
        mounts=[Mount(CONTAINER_RUNS, volume.name, read_only=True)],
        labels={READER: name},
    )
    try:
        archive = _Archive(engine, str(container.id), f"{CONTAINER_RUNS}/{name}")
        there = {
            known: directory
            for known, directories in ARTIFACT_DIRECTORIES.items()
            for directory in reversed(directories)
            if archive.has(directory)
        }
        if artifact not in there:
            raise missing_artifact(name, artifact, there)
        with archive.read(there[artifact]) as chunks:
            yield Stored(str(Location("volume", volume.name, f"{name}/{there[artifact]}")), chunks)
    finally:
        with contextlib.suppress(NotFound):
            container.remove(force=True, v=True)  # with the volumes that its image asks for


class _Archive:
    """Directories of a container as tar files. The SDK's `get_archive` neither lets go of what is not read to the end nor times out."""

    def __init__(self, engine: Engine, container: str, root: str) -> None:
        self._api, self._root = engine.client.api, root
        self._url = f"{self._api.base_url}/v{self._api.api_version}/containers/{container}/archive"

    def has(self, directory: str) -> bool:
        """Return whether a directory is there. Raises one of engine.ERRORS."""
        answer = self._api.head(self._url, params=self._of(directory), timeout=TIMEOUT)
        if answer.status_code == http.client.NOT_FOUND:
            return False
        _check(answer)
        return True

    @contextlib.contextmanager
    def read(self, directory: str) -> Iterator[Iterator[bytes]]:
        """Open a directory as the pieces of a tar file. Raises one of engine.ERRORS."""
        with contextlib.closing(self._api.get(self._url, params=self._of(directory), timeout=TIMEOUT, stream=True)) as answer:
            _check(answer)
            yield answer.iter_content(_PIECE)

    def _of(self, directory: str) -> dict[str, str]:
        return {"path": f"{self._root}/{directory}/."}  # the dot lets the engine follow a link


def _check(answer: requests.Response) -> None:
    """Raise APIError, with what the engine says, for an answer that is one of failure."""
    try:
        answer.raise_for_status()
    except requests.HTTPError as error:
        create_api_error_from_http_exception(error)


def _any_image(engine: Engine, spec: ClusterSpec | None) -> str:
    wanted = images.image_for(spec) if spec is not None else images.DEFAULT_IMAGE
    if images.find(wanted) is not None:
        return wanted
    for image in engine.client.images.list():
        return str(image.id)
    raise LauncherError(
        f"the image {wanted} is not there, nor any other, and a container of it is to mount the volume", images.build_command(wanted)
    )


def _copy(engine: Engine, image: str, run: str, old: str, new: str) -> None:
    """Copy all of a volume to a new one, with owners and rights; leaves no container. Raises LauncherError or one of engine.ERRORS."""
    copying = engine.client.containers.create(
        image,
        entrypoint=["cp"],
        command=["-a", "/from/.", "/to/"],
        user="0:0",
        network_mode="none",
        mounts=[Mount("/from", old, read_only=True), Mount("/to", new, labels={RENAMED_FROM: run})],
        labels={COPY: run},
    )
    try:
        copying.start()
        copying.reload()
        deadline = time.monotonic() + _COPY_TIMEOUT
        while copying.status not in EXITED:  # somebody may pause it
            if time.monotonic() >= deadline:
                raise LauncherError(
                    f"copying the volume {old} was not done after {_COPY_TIMEOUT:g} s; it is as it was",
                    "give the new run another name, or delete the old data: `launcher down` with --delete-data",
                )
            time.sleep(_POLL_INTERVAL)
            copying.reload()
        if copying.status == "dead" or copying.attrs["State"]["ExitCode"]:
            output = copying.logs().decode("utf-8", "replace")
            raise explain(output or "cp failed without a word", f"copying the volume {old}")
    finally:
        copying.remove(force=True, v=True)
