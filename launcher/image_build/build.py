"""Builds the image through the docker command, reporting its progress."""

import contextlib
import os
import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from launcher import __version__, images
from launcher.docker_cli import DockerError, docker, last_line, program
from launcher.errors import LauncherError, UsageError
from launcher.image_build.context import DOCKERFILE, archive, default_base_image, source_digest
from launcher.image_build.failures import failure
from launcher.image_build.steps import Output, Step, Steps
from launcher.images import Image
from launcher.plan.container_paths import CONTAINER_CODE

DEADLINE = 2 * 3600.0  # seconds; the CUDA libraries are 3 GB, and some lines are slow

Report = Callable[[Step | Output], None]

# On top of the image that was just built. The code's own .dockerignore says what stays out.
_WITH_CODE = f"""\
ARG IMAGE
FROM ${{IMAGE}}
COPY --chown={images.USER}:{images.USER} . {CONTAINER_CODE}
"""


@dataclass(frozen=True)
class Request:
    """A build. `build_args` are NAME=VALUE, or NAME for the environment's own value; what is None has a default."""

    gpu: bool = False
    code: Path | None = None
    tag: str | None = None
    base_image: str | None = None
    build_args: Sequence[str] = ()
    pip_config: Path | None = None
    ca_file: Path | None = None
    platform: str | None = None

    @property
    def ours(self) -> str:
        """The name of the image without the user's code; below that code one for another platform does not replace the engine's own."""
        default = images.GPU_IMAGE if self.gpu else images.DEFAULT_IMAGE
        if self.code is None:
            return self.tag or default
        return f"{default}-{_word(self.platform)}" if self.platform else default

    @property
    def name(self) -> str:
        """The name of the image that is asked for."""
        return self.ours if self.code is None else self.tag or f"{self.ours}-with-{_word(self.code.resolve().name)}"

    @property
    def base(self) -> str:
        """The name of the base image."""
        return self.base_image or default_base_image()


def build(request: Request, report: Report, *, raw: Callable[[str], None] | None = None) -> Image:
    """Build what is asked for and return it. `report` is called with steps and their output, `raw` with every line.

    Raises DockerError when the build fails.
    """
    _docker_build(_arguments(request), archive(), request.ours, request.base, report, raw)
    if request.code is not None:
        arguments = ["--file", "-", "--build-arg", f"IMAGE={request.ours}", "--tag", request.name, *_platform(request)]
        _docker_build([*arguments, str(request.code)], _WITH_CODE.encode(), request.name, request.ours, report, raw)
    built = images.find(request.name)
    if built is None:
        raise LauncherError(
            f"the engine built {request.name} and does not have it", "see whether another engine is in use: docker context ls, DOCKER_HOST"
        )
    return built


def push(name: str) -> None:
    """Push an image to the registry that its name begins with. Raises DockerError with what that answers, and what to do."""
    try:
        docker("push", "--quiet", name, deadline=DEADLINE)
    except DockerError as error:
        registry = name.partition("/")[0]
        remedy = f"see that {registry} is reached and lets you: docker login {registry}; the image is in the engine, so docker push {name}"
        raise DockerError(f"pushing {name} failed: {last_line(error.output) or error.message}", remedy, error.output) from error


def _arguments(request: Request) -> list[str]:
    arguments = ["--file", DOCKERFILE, "--target", "gpu" if request.gpu else "cpu", "--tag", request.ours]
    arguments += ["--build-arg", f"VERSION={__version__}", "--build-arg", f"BASE_IMAGE={request.base}"]
    # Not in the Dockerfile: a label is no layer, but an argument is part of every step after it.
    arguments += ["--label", f"{images.SOURCE_DIGEST}={source_digest()}"]
    arguments += _platform(request)
    for argument in request.build_args:
        arguments += ["--build-arg", argument]
    for secret, file in (("pip-config", request.pip_config), ("ca", request.ca_file)):
        if file is not None:
            arguments += ["--secret", f"id={secret},src={file}"]
    return [*arguments, "-"]


def _platform(request: Request) -> list[str]:
    return ["--platform", request.platform] if request.platform else []


def check(request: Request) -> None:
    """Raise UsageError for files and arguments that cannot be used: the build would fail late, or not notice."""
    code = request.code
    if code is not None and not code.is_dir():
        what = "is no directory" if code.exists() else "is not there"
        raise UsageError(f"--code: {code} {what}", "give the directory with your code")
    if code is not None and not any(code.iterdir()):
        raise UsageError(f"--code: {code} is empty", "give the directory with your code")
    for option, file in (("--pip-config", request.pip_config), ("--ca-file", request.ca_file)):
        if file is not None and not file.is_file():
            raise UsageError(f"{option}: there is no file {file}", "check the path")
    if request.ca_file is not None and b"-----BEGIN CERTIFICATE-----" not in request.ca_file.read_bytes():
        raise UsageError(f"--ca-file: {request.ca_file} has no certificate in PEM format", "convert it: openssl x509 -inform der -in FILE")
    for argument in request.build_args:
        if not re.fullmatch(r"[A-Za-z_]\w*(=.*)?", argument, re.DOTALL):
            raise UsageError(f"--build-arg: {argument!r} is not NAME=VALUE", "write such as --build-arg HTTPS_PROXY=http://proxy:3128")


def _word(name: str) -> str:
    """Return a name as a part of an image's tag."""
    word = re.sub(r"[^a-z0-9_.-]+", "-", name.lower()).strip("-._")
    return word[:40] or "code"


def _docker_build(arguments: list[str], stdin: bytes, name: str, base: str, report: Report, raw: Callable[[str], None] | None) -> None:
    """Run `docker build`; raise DockerError when it fails."""
    # The engine's own builder: an image that another builder makes would not be in the engine.
    environment = {key: value for key, value in os.environ.items() if key != "BUILDX_BUILDER"}
    environment |= {"DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
    steps = Steps()
    output: list[str] = []
    with subprocess.Popen(
        [program(), "build", "--progress=plain", *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdin is not None  # noqa: S101 - both are pipes
        assert process.stdout is not None  # noqa: S101
        deadline = threading.Timer(DEADLINE, process.kill)
        deadline.start()
        threading.Thread(target=_feed, args=(process.stdin, stdin), daemon=True).start()
        try:
            for line in (raw_line.decode(errors="replace").rstrip("\n") for raw_line in process.stdout):
                output.append(line)
                if raw is not None:
                    raw(line)
                if (progress := steps.read(line)) is not None:
                    report(progress)
            code = process.wait()
        except BaseException:
            process.terminate()
            raise
        finally:
            late = not deadline.is_alive()
            deadline.cancel()
    if late:
        raise DockerError(f"the image {name} was not built within {DEADLINE / 3600:g} hours", "see what it waits for: --verbose")
    if code:
        raise failure("\n".join(output), name=name, base=base, last="\n".join(steps.last))


def _feed(stdin: IO[bytes], content: bytes) -> None:
    """Write the context; an engine that is not there closes the pipe before it has all, and says why itself."""
    with contextlib.suppress(OSError), stdin:
        stdin.write(content)
