"""A run's volume: copied to another name, out of a new run's way, and read through the engine."""

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
from launcher.runs.artifacts import ARTIFACT_DIRECTORIES, Artifact, ArtifactStream, missing_artifact_error
from launcher.runs.status import Location
from launcher.spec.models import ClusterSpec

RENAMED_FROM = f"{labels.PREFIX}set-aside"  # label of a renamed volume; its value is the run
_COPY_TIMEOUT = 3600.0
_POLL_INTERVAL = 0.2
_CHUNK = 1 << 20  # bytes


def rename(engine: Engine, name: str, new_name: str, spec: ClusterSpec | None) -> Location | None:
    """Copy a run's volume to one named after `new_name`, remove the old one, and return the new one; None if the run has none.

    Volumes cannot be renamed, so a container of the run's own image copies the data. Raises one of engine.ERRORS.
    """
    # Found by its label: a volume with the right name may belong to another project.
    volumes = engine.volumes(name)
    if not volumes:
        return None
    old = volumes[0]
    image = images.spec_image(spec) if spec is not None else images.DEFAULT_IMAGE
    if images.find(image) is None:
        raise LauncherError(
            f"the engine does not have the image {image}; the old run's data is copied by a container of it", images.build_command(image)
        )
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
def open_artifact(engine: Engine, name: str, artifact: Artifact, spec: ClusterSpec | None) -> Iterator[ArtifactStream]:
    """Open an artifact in a run's volume for a `with` block, as the engine sends it. Raises UsageError, or one of engine.ERRORS.

    The engine reads volumes through a container, which need not run: so any image will do.
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
        existing = {
            kind: directory
            for kind, directories in ARTIFACT_DIRECTORIES.items()
            for directory in reversed(directories)
            if archive.has(directory)
        }
        if artifact not in existing:
            raise missing_artifact_error(name, artifact, existing)
        with archive.read(existing[artifact]) as chunks:
            yield ArtifactStream(str(Location("volume", volume.name, f"{name}/{existing[artifact]}")), chunks)
    finally:
        with contextlib.suppress(NotFound):
            container.remove(force=True, v=True)  # with the volumes that its image declares


class _Archive:
    """Directories of a container as tar files. The SDK's `get_archive` has no timeout, and does not close a response that was not read to its end."""

    def __init__(self, engine: Engine, container: str, root: str) -> None:
        self._api, self._root = engine.client.api, root
        self._url = f"{self._api.base_url}/v{self._api.api_version}/containers/{container}/archive"

    def has(self, directory: str) -> bool:
        """Return whether a directory exists. Raises one of engine.ERRORS."""
        response = self._api.head(self._url, params=self._params(directory), timeout=TIMEOUT)
        if response.status_code == http.client.NOT_FOUND:
            return False
        _check(response)
        return True

    @contextlib.contextmanager
    def read(self, directory: str) -> Iterator[Iterator[bytes]]:
        """Open a directory as the chunks of a tar file. Raises one of engine.ERRORS."""
        with contextlib.closing(self._api.get(self._url, params=self._params(directory), timeout=TIMEOUT, stream=True)) as response:
            _check(response)
            yield response.iter_content(_CHUNK)

    def _params(self, directory: str) -> dict[str, str]:
        return {"path": f"{self._root}/{directory}/."}  # the dot lets the engine follow a link


def _check(response: requests.Response) -> None:
    """Raise APIError, with the engine's message, for the response to a failed request."""
    try:
        response.raise_for_status()
    except requests.HTTPError as error:
        create_api_error_from_http_exception(error)


def _any_image(engine: Engine, spec: ClusterSpec | None) -> str:
    preferred = images.spec_image(spec) if spec is not None else images.DEFAULT_IMAGE
    if images.find(preferred) is not None:
        return preferred
    for image in engine.client.images.list():
        return str(image.id)
    raise LauncherError(
        f"the engine has no image, and reading the volume needs a container of one ({preferred})", images.build_command(preferred)
    )


def _copy(engine: Engine, image: str, run: str, old: str, new: str) -> None:
    """Copy a volume to a new one, with owners and permissions; leave no container. Raises LauncherError or one of engine.ERRORS."""
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
        while copying.status not in EXITED:  # also while it is paused
            if time.monotonic() >= deadline:
                raise LauncherError(
                    f"the volume {old} could not be copied within {_COPY_TIMEOUT:g} s; it is unchanged",
                    "give the new run another name, or delete the old data: `launcher down` with --delete-data",
                )
            time.sleep(_POLL_INTERVAL)
            copying.reload()
        if copying.status == "dead" or copying.attrs["State"]["ExitCode"]:
            output = copying.logs().decode("utf-8", "replace")
            raise explain(output or "cp failed without output", f"copying the volume {old}")
    finally:
        copying.remove(force=True, v=True)
