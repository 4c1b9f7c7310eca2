"""Messages when the engine cannot be reached: the reason and the remedy."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import requests
import urllib3
from docker.errors import DockerException

from launcher.backend.docker.engine import Endpoint, Engine, translate_errors
from launcher.errors import LauncherError
from tests.golden_messages import Golden


def wrapped_by_the_client(inner: OSError) -> DockerException:
    """Return the exception of the Docker client whose first call meets an error of the operating system."""
    error = requests.exceptions.ConnectionError(urllib3.exceptions.ProtocolError("Connection aborted.", inner))
    wrapped = DockerException(f"Error while fetching server API version: {error}")
    wrapped.__cause__ = error
    return wrapped


def permission_denied() -> OSError:
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def no_socket() -> OSError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


@pytest.mark.parametrize("wrapped", [wrapped_by_the_client, lambda inner: inner], ids=["by the client", "unwrapped"])
@pytest.mark.parametrize(
    "inner, message, remedy",
    [
        (permission_denied(), "no permission to use the Docker engine", "group docker"),
        (no_socket(), "the Docker engine does not answer", "docker info"),
    ],
    ids=["no permission", "no socket"],
)
def test_a_missing_permission_and_a_missing_socket_have_different_messages(
    wrapped: Callable[[OSError], Exception], inner: OSError, message: str, remedy: str
) -> None:
    with pytest.raises(LauncherError) as caught, translate_errors("listing the runs"):
        raise wrapped(inner)
    assert message in caught.value.message
    assert remedy in caught.value.remedy


def test_an_empty_docker_host_means_the_engine_of_the_context_as_for_the_docker_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        far = f"127.0.0.1:{unused.getsockname()[1]}"  # nothing listens there
        with pytest.raises(LauncherError) as caught:
            Engine(Endpoint(f"tcp://{far}"))
    assert far.partition(":")[2] in caught.value.message


def test_a_full_disk_of_this_machine_is_not_mistaken_for_an_error_of_the_engine(tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(LauncherError) as caught, translate_errors("starting the run"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "state.json"))
    golden(caught.value.message)
    assert "free some space" in caught.value.remedy
