"""Runs the `docker` command, and adds a remedy to its errors.

It is preferred to the SDK because it uses the contexts, credentials and proxies that the user has set up.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from typing import Literal

from launcher.errors import LauncherError

TIMEOUT = 60.0  # seconds; slow commands pass their own


class DockerError(LauncherError):
    """The docker command failed. `output` is what it wrote, empty if it could not be run."""

    def __init__(self, message: str, remedy: str, output: str = "") -> None:
        super().__init__(message, remedy)
        self.output = output


EngineProblem = Literal["forbidden", "unreachable", "context"]
# Problem -> the pattern of the command's message, our message, the remedy.
_ENGINE_PROBLEMS: dict[EngineProblem, tuple[str, str, str]] = {
    "forbidden": (
        r"permission denied.*(?:docker\.sock|docker daemon|docker API)",
        "no permission to use the Docker engine",
        "add yourself to the group docker (sudo usermod -aG docker $USER, then log in again), or use rootless Docker",
    ),
    "unreachable": (
        r"cannot connect to the docker daemon|error during connect|failed to connect to the docker api",
        "the Docker engine does not answer",
        "start it (Docker Desktop, or sudo systemctl start docker); `docker info` must answer (DOCKER_HOST and `docker context ls` name the engine in use)",
    ),
    "context": (
        r"context \S+ (?:context )?(?:not found|does not exist)|unable to resolve docker endpoint",
        "the current Docker context cannot be used",
        "choose one of `docker context ls` with `docker context use`, or unset DOCKER_CONTEXT",
    ),
}


def docker_path() -> str:
    """Return the path of the docker command. Raises DockerError if it is not installed."""
    path = shutil.which("docker")
    if path is None:
        raise DockerError(
            "the command docker is not installed",
            "install Docker Engine or Docker Desktop, with its buildx and compose plugins (Debian, Ubuntu: docker.io, docker-buildx,"
            " docker-compose-v2); `docker info` must answer",
        )
    return path


def engine_error(output: str) -> DockerError | None:
    """Return the error if the docker command's `output` says that no engine answers, else None."""
    problems = (problem for problem, (pattern, _, _) in _ENGINE_PROBLEMS.items() if re.search(pattern, output, re.IGNORECASE))
    return next((engine_error_for(problem, output) for problem in problems), None)


def engine_error_for(problem: EngineProblem, output: str) -> DockerError:
    """Return the error for an engine that does not answer; `output` is from the command or the client."""
    _, message, remedy = _ENGINE_PROBLEMS[problem]
    return DockerError(f"{message}: {last_line(output)}", remedy, output)


def last_line(output: str) -> str:
    """Return the last line of `output` that is not blank."""
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "no output")


def docker(*arguments: str, timeout: float = TIMEOUT, environment: Mapping[str, str] | None = None, stdin: str | None = None) -> str:
    """Run `docker ARGUMENTS` and return its stdout. `environment` replaces this process's own; `timeout` in seconds.

    Raises DockerError if the command is not installed, the engine does not answer, the time is up, or the exit code is not 0.
    """
    command_line = shlex.join(["docker", *arguments])
    try:
        completed = subprocess.run(
            [docker_path(), *arguments],
            env=environment,
            input="" if stdin is None else stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DockerError(
            f"`{command_line}` gave no answer within {timeout:g} s",
            "check whether the engine is busy or hangs: docker info",
            str(error.stderr or ""),
        ) from None
    if completed.returncode == 0:
        return completed.stdout
    output = completed.stderr or completed.stdout
    raise engine_error(output) or DockerError(
        f"`{command_line}` failed: {last_line(output)}", "the message above comes from the engine", output
    )
