"""The Docker engine that the user has set up: its endpoint, and a client of its API."""

import contextlib
import errno
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import requests
from docker import DockerClient
from docker.errors import APIError, DockerException, NotFound
from docker.models.containers import Container
from docker.tls import TLSConfig

from launcher import docker_cli
from launcher.backend.docker.errors import explain
from launcher.docker_cli import DockerError
from launcher.errors import LauncherError
from launcher.render import labels
from launcher.runs import os_errors

# Errors that every call of the client may raise: the engine's own, and those of the connection to it.
ERRORS = (DockerException, requests.exceptions.RequestException, OSError)
COPY = f"{labels.PREFIX}copy-of"  # label of a container that copies a run's volume; its value is the run
READER = f"{labels.PREFIX}reader-of"  # label of a container through which a run's volume is read; its value is the run
TIMEOUT = 60  # seconds for one answer
_OLDEST_COMPOSE = (2, 20)  # the first that reads mounts and devices as the Compose files have them; tested with 2.26
COMPOSE_TIMEOUT = 600.0  # containers wait for their images and for one another
# The engine refuses to remove an object that it is already removing, and a network whose containers it is still removing.
_REMOVE_TIMEOUT = 20.0
_REMOVE_RETRY_INTERVAL = 0.3
_IN_USE_CODES = (403, 409)  # the status codes of these refusals; 403: the network has active endpoints
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True)
class Endpoint:
    """The engine's address, from DOCKER_HOST or the current Docker context."""

    host: str
    tls: Mapping[str, Any] | None = None

    @property
    def is_local(self) -> bool:
        """Whether directories of this machine can be mounted: the engine, or its virtual machine, shares them."""
        return self.host.startswith(("unix://", "npipe://"))


def endpoint() -> Endpoint:
    """Return the engine's endpoint. Raises DockerError if the docker command is missing or its context is unusable."""
    context = json.loads(docker_cli.docker("context", "inspect"))[0]
    host = context["Endpoints"]["docker"]["Host"]
    directory = Path((context.get("Storage") or {}).get("TLSPath") or "", "docker")
    if os.environ.get("DOCKER_HOST") or not (directory / "ca.pem").is_file():
        return Endpoint(host)
    verify = not context["Endpoints"]["docker"].get("SkipTLSVerify", False)
    certificate = (str(directory / "cert.pem"), str(directory / "key.pem")) if (directory / "cert.pem").is_file() else None
    return Endpoint(host, {"client_cert": certificate, "ca_cert": str(directory / "ca.pem"), "verify": verify})


class Engine:
    """A client of the engine. Inside `translate_errors` its calls raise LauncherError, with the engine's message."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._timeout = TIMEOUT
        with translate_errors("asking the Docker engine"):
            self.client = self.connect()

    def set_timeout(self, timeout: int) -> None:
        """Wait at most `timeout` seconds for each answer from now on."""
        self._timeout = self.client.api.timeout = timeout

    def connect(self) -> DockerClient:
        """Return a new client. Raises one of ERRORS if the engine does not answer."""
        over_ssh = self.endpoint.host.startswith("ssh://")
        if os.environ.get("DOCKER_HOST"):
            client = docker.from_env(timeout=self._timeout, use_ssh_client=over_ssh)
        else:
            tls = TLSConfig(**self.endpoint.tls) if self.endpoint.tls else False
            client = DockerClient(base_url=self.endpoint.host, tls=tls, timeout=self._timeout, use_ssh_client=over_ssh)
        client.ping()
        return client

    def containers(self, run: str | None = None) -> list[Container]:
        """Return the containers of a run, or of all runs, in any state. Raises one of ERRORS."""
        return self.client.containers.list(all=True, filters={"label": _label(run)}, ignore_removed=True)

    def volumes(self, run: str | None = None) -> list[Any]:
        """Return the volumes of a run, or of all runs. Raises one of ERRORS."""
        return self.client.volumes.list(filters={"label": _label(run)})

    def remove(self, run: str) -> dict[str, int]:
        """Remove the containers of a run, their anonymous volumes, and its networks; the run's volume stays. Raises one of ERRORS.

        Returns how many containers and networks were removed.
        """
        self._remove_copies(run)
        removed: Counter[str] = Counter()
        deadline = time.monotonic() + _REMOVE_TIMEOUT
        while (refused := self._remove(run, removed)) is not None:
            if time.monotonic() >= deadline:
                raise refused
            time.sleep(_REMOVE_RETRY_INTERVAL)
        self._remove_scratch(run)
        return dict(removed)

    def _remove_scratch(self, run: str) -> None:
        """Remove the volumes that begin empty with each start of the run; call it once the run's containers are gone."""
        for volume in self.client.volumes.list(filters={"label": f"{labels.SCRATCH}={run}"}):
            with contextlib.suppress(NotFound):
                volume.remove()

    def _remove_copies(self, run: str) -> None:
        """Remove the container and the new volume of an unfinished copy of the run's volume: the old volume still has all data."""
        for container in self.client.containers.list(all=True, filters={"label": f"{COPY}={run}"}, ignore_removed=True):
            with contextlib.suppress(NotFound):
                container.remove(force=True)
                for mount in container.attrs["Mounts"]:
                    if mount.get("RW"):
                        self.client.volumes.get(mount["Name"]).remove()

    def remove_readers(self, run: str) -> None:
        """Remove the containers that read the run's volume and so block its deletion; a killed launcher leaves them, too. Raises one of ERRORS."""
        for container in self.client.containers.list(all=True, filters={"label": f"{READER}={run}"}, ignore_removed=True):
            with contextlib.suppress(NotFound):
                container.remove(force=True, v=True)

    def _remove(self, run: str, removed: Counter[str]) -> APIError | None:
        """Remove what can be removed now, and count it by kind; return the last error of an object that is still in use."""
        refused: APIError | None = None
        objects: list[tuple[str, Any, dict[str, bool]]] = [
            ("container", container, {"force": True, "v": True}) for container in self.containers(run)
        ]
        objects += [("network", network, {}) for network in self.client.networks.list(filters={"label": _label(run)})]
        for kind, found, options in objects:
            try:
                found.remove(**options)
                removed[kind] += 1
            except NotFound:
                continue
            except APIError as error:
                if error.status_code not in _IN_USE_CODES:
                    raise
                refused = error
        return refused


def _label(run: str | None) -> str:
    return labels.RUN if run is None else f"{labels.RUN}={run}"


@contextlib.contextmanager
def translate_errors(action: str) -> Iterator[None]:
    """Turn the client's errors in a `with` block into LauncherErrors with a remedy."""
    try:
        yield
    except ERRORS as error:
        raise _translated(error, action) from error


def _translated(error: Exception, action: str) -> LauncherError:
    """Return the LauncherError for an error of the client: the engine's message, or why the engine could not be reached."""
    if isinstance(error, APIError):
        return explain(str(error.explanation or error), action)
    inner = _os_error(error)
    if inner is not None and inner.errno in _DISK_FULL:
        return os_errors.explain(inner, action)
    return docker_cli.engine_error_for("forbidden" if isinstance(inner, PermissionError) else "unreachable", str(error))


def _os_error(error: BaseException) -> OSError | None:
    """Return the OSError inside an error of the client: among its arguments or its causes."""
    pending: list[object] = [error]
    for inner in pending:
        if isinstance(inner, OSError) and isinstance(inner.errno, int):
            return inner
        if isinstance(inner, BaseException):
            pending += [it for it in (*inner.args, inner.__cause__, inner.__context__) if it is not None and it not in pending]
    return None


def compose(run: str, file: Path, *arguments: str, action: str, timeout: float = 0.0) -> None:
    """Run `docker compose` on a run's file for at most `timeout` seconds, or ten minutes if that is longer. Raises LauncherError."""
    # The user's own settings for Compose must change neither what is started nor how progress is written.
    user_variables = ("COMPOSE_", "TRAINER_IMAGE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(user_variables)} | {"TRAINER_EVENTS": "json"}
    command = ["compose", "--ansi", "never", "--project-name", run, "--file", str(file), *arguments]
    try:
        docker_cli.docker(*command, timeout=max(timeout, COMPOSE_TIMEOUT), environment=environment)
    except DockerError as error:
        raise explain(error.output or error.message, action) from error


def compose_version() -> str:
    """Return the version of the Compose plugin. Raises LauncherError if there is none, or if it is too old to read the Compose files."""
    try:
        version = docker_cli.docker("compose", "version", "--short").strip()
    except DockerError as error:
        if not error.output:
            raise
        raise explain(error.output, "asking for Docker Compose") from error
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < _OLDEST_COMPOSE:
        oldest = ".".join(map(str, _OLDEST_COMPOSE))
        raise LauncherError(
            f"the Compose plugin is {version}; expected {oldest} or newer", "update it: docker-compose-plugin, or Docker Desktop"
        )
    return version
