"""Messages when the engine cannot be asked: why not, and what to do about it."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import requests
import urllib3
from docker.errors import DockerException

from launcher.backend.docker.engine import translate_errors
from launcher.errors import LauncherError
from tests.golden_messages import Golden


def by_the_client(inner: OSError) -> DockerException:
    """Return what the client raises when its first call meets an error of the operating system, as it wraps it."""
    error = requests.exceptions.ConnectionError(urllib3.exceptions.ProtocolError("Connection aborted.", inner))
    wrapped = DockerException(f"Error while fetching server API version: {error}")
    wrapped.__cause__ = error
    return wrapped


def refused() -> OSError:
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def nobody() -> OSError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


@pytest.mark.parametrize("wrapped", [by_the_client, lambda inner: inner], ids=["by the client", "as it is"])
@pytest.mark.parametrize(
    "inner, message, remedy",
    [(refused(), "no permission to use the Docker engine", "group docker"), (nobody(), "the Docker engine does not answer", "docker info")],
    ids=["no permission", "no socket"],
)
def test_who_may_not_ask_is_told_from_who_gets_no_answer(
    wrapped: Callable[[OSError], Exception], inner: OSError, message: str, remedy: str
) -> None:
    with pytest.raises(LauncherError) as caught, translate_errors("listing the runs"):
        raise wrapped(inner)
    assert message in caught.value.message
    assert remedy in caught.value.remedy


def test_a_disk_of_this_machine_that_is_full_is_not_taken_for_the_engine(tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(LauncherError) as caught, translate_errors("starting the run"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "state.json"))
    golden(caught.value.message)
    assert "free some space" in caught.value.remedy
