"""The `docker` command: runs it, and says of what it could not do what to do about it.

The command and not the SDK, where either would do: it knows contexts, credentials and proxies as the user has set them up.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from typing import Literal

from launcher.errors import LauncherError

DEADLINE = 60.0  # seconds; what takes longer by nature gives its own


class DockerError(LauncherError):
    """The engine could not be asked, or would not. `output` is what the command said, empty when it could not be run."""

    def __init__(self, message: str, remedy: str, output: str = "") -> None:
        super().__init__(message, remedy)
        self.output = output


NoEngine = Literal["forbidden", "silent", "context"]
# Why there is no engine to ask -> how the command says so, what is wrong, what to do.
_NO_ENGINE: dict[NoEngine, tuple[str, str, str]] = {
    "forbidden": (
        r"permission denied.*(?:docker\.sock|docker daemon|docker API)",
        "you may not talk to the Docker engine",
        "add yourself to the group docker (sudo usermod -aG docker $USER, then log in again), or use rootless Docker",
    ),
    "silent": (
        r"cannot connect to the docker daemon|error during connect|failed to connect to the docker api",
        "the Docker engine does not answer",
        "start it (Docker Desktop, or sudo systemctl start docker); `docker info` must answer (DOCKER_HOST, `docker context ls`: which one)",
    ),
    "context": (
        r"context \S+ (?:context )?(?:not found|does not exist)|unable to resolve docker endpoint",
        "the Docker context that is set up cannot be used",
        "choose one of `docker context ls` with `docker context use`, or unset DOCKER_CONTEXT",
    ),
}


def program() -> str:
    """Return the path of the docker command. Raises DockerError where there is none."""
    found = shutil.which("docker")
    if found is None:
        raise DockerError(
            "the command docker is not installed",
            "install Docker Engine or Docker Desktop, with its buildx and compose plugins (Debian, Ubuntu: docker.io, docker-buildx,"
            " docker-compose-v2); `docker info` must answer",
        )
    return found


def no_engine(output: str) -> DockerError | None:
    """Return what is wrong when `output` of the docker command says that there was no engine to ask, else None."""
    found = (why for why, (pattern, _, _) in _NO_ENGINE.items() if re.search(pattern, output, re.IGNORECASE))
    return next((no_engine_error(why, output) for why in found), None)


def no_engine_error(why: NoEngine, output: str) -> DockerError:
    """Return the error for an engine that could not be asked, by what the command or the client said of it."""
    _, message, remedy = _NO_ENGINE[why]
    return DockerError(f"{message}: {last_line(output)}", remedy, output)


def last_line(output: str) -> str:
    """Return the last line of `output` that says something."""
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "it said nothing")


def docker(*arguments: str, deadline: float = DEADLINE, environment: Mapping[str, str] | None = None, stdin: str | None = None) -> str:
    """Run `docker ARGUMENTS` and return its stdout. `environment` replaces this process's own; `deadline` in seconds.

    Raises DockerError when the command is not there, the engine does not answer, the deadline passes or it exits other than 0.
    """
    words = [program(), *arguments]
    command_line = shlex.join(["docker", *arguments])
    try:
        done = subprocess.run(
            words,
            env=environment,
            input="" if stdin is None else stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise DockerError(
            f"`{command_line}` gave no answer within {deadline:g} s",
            "see whether the engine is busy or hangs: docker info",
            str(late.stderr or ""),
        ) from None
    if done.returncode == 0:
        return done.stdout
    output = done.stderr or done.stdout
    raise no_engine(output) or DockerError(f"`{command_line}` failed: {last_line(output)}", "the line above is the engine's own", output)
