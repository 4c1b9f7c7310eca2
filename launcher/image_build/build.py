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
from launcher.docker_cli import DockerError, docker, docker_path, last_line
from launcher.errors import LauncherError, UsageError
from launcher.image_build.context import DOCKERFILE, archive, default_base_image, source_digest
from launcher.image_build.failures import failure
from launcher.image_build.steps import Output, ProgressParser, Step
from launcher.images import Image
from launcher.plan.container_paths import CONTAINER_CODE

TIMEOUT = 2 * 3600.0  # seconds; the CUDA libraries are 3 GB, and some connections are slow
_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")  # the registries of Docker Hub

OnProgress = Callable[[Step | Output], None]

# Adds the code to the image that was just built, without what the code's .dockerignore excludes.
_CODE_DOCKERFILE = f"""\
ARG IMAGE
FROM ${{IMAGE}}
COPY --chown={images.USER}:{images.USER} . {CONTAINER_CODE}
"""


@dataclass(frozen=True)
class BuildRequest:
    """A build. `build_args` are NAME=VALUE, or NAME for the environment's own value; None is the default."""

    gpu: bool = False
    code: Path | None = None
    tag: str | None = None
    base_image: str | None = None
    build_args: Sequence[str] = ()
    pip_config: Path | None = None
    ca_file: Path | None = None
    platform: str | None = None

    @property
    def trainer_image(self) -> str:
        """The name of the image without the user's code. With `code` and `platform` it has a name of its own, so that it does not replace the image for the engine's platform."""
        default = images.GPU_IMAGE if self.gpu else images.DEFAULT_IMAGE
        if self.code is None:
            return self.tag or default
        return f"{default}-{_tag_part(self.platform)}" if self.platform else default

    @property
    def name(self) -> str:
        """The name of the requested image."""
        return self.trainer_image if self.code is None else self.tag or f"{self.trainer_image}-with-{_tag_part(self.code.resolve().name)}"

    @property
    def effective_base_image(self) -> str:
        """The name of the base image."""
        return self.base_image or default_base_image()


def build(request: BuildRequest, on_progress: OnProgress, *, on_line: Callable[[str], None] | None = None) -> Image:
    """Build the requested image and return it. `on_progress` is called with steps and their output, `on_line` with every line.

    Raises DockerError if the build fails, LauncherError if the engine does not have the image afterwards.
    """
    _docker_build(_arguments(request), archive(), request.trainer_image, request.effective_base_image, on_progress, on_line)
    if request.code is not None:
        arguments = ["--file", "-", "--build-arg", f"IMAGE={request.trainer_image}", "--tag", request.name, *_platform(request)]
        _docker_build([*arguments, str(request.code)], _CODE_DOCKERFILE.encode(), request.name, request.trainer_image, on_progress, on_line)
    built = images.find(request.name)
    if built is None:
        raise LauncherError(
            f"the engine built {request.name} and does not have it",
            "check whether another engine is in use: docker context ls, DOCKER_HOST",
        )
    return built


def push(name: str) -> None:
    """Push an image to the registry that its name begins with. Raises DockerError with the registry's answer and a remedy."""
    try:
        docker("push", "--quiet", name, timeout=TIMEOUT)
    except DockerError as error:
        registry = _registry(name)
        login = "docker login" if registry is None else f"docker login {registry}"
        remedy = f"check that {registry or 'Docker Hub'} can be reached, and log in: {login}; the image is in the engine, so then docker push {name}"
        if registry is None and "/" not in (image := _without_hub(name)):  # no login permits docker.io/library/...
            remedy = f"name it USER/{image}: docker tag {name} USER/{image}; log in: {login}; then docker push USER/{image}"
        raise DockerError(f"pushing {name} failed: {last_line(error.output) or error.message}", remedy, error.output) from error


def _registry(name: str) -> str | None:
    """Return the registry that an image's name begins with; None for Docker Hub."""
    first, slash, _ = name.partition("/")
    is_registry = slash and (first == "localhost" or not {".", ":"}.isdisjoint(first))
    return first if is_registry and first not in _HUB else None


def _without_hub(name: str) -> str:
    first, _, rest = name.partition("/")
    return rest if first in _HUB else name


def _arguments(request: BuildRequest) -> list[str]:
    arguments = ["--file", DOCKERFILE, "--target", "gpu" if request.gpu else "cpu", "--tag", request.trainer_image]
    arguments += ["--build-arg", f"VERSION={__version__}", "--build-arg", f"BASE_IMAGE={request.effective_base_image}"]
    # Not as an argument of the Dockerfile, which would invalidate the cache of every later step.
    arguments += ["--label", f"{images.SOURCE_DIGEST_LABEL}={source_digest()}"]
    arguments += _platform(request)
    for argument in request.build_args:
        arguments += ["--build-arg", argument]
    for secret, file in (("pip-config", request.pip_config), ("ca", request.ca_file)):
        if file is not None:
            arguments += ["--secret", f"id={secret},src={file}"]
    return [*arguments, "-"]


def _platform(request: BuildRequest) -> list[str]:
    return ["--platform", request.platform] if request.platform else []


def check(request: BuildRequest) -> None:
    """Raise UsageError for files and arguments that would make the build fail late, or that it would ignore."""
    code = request.code
    if code is not None and not code.is_dir():
        cause = "is not a directory" if code.exists() else "does not exist"
        raise UsageError(f"--code: {code} {cause}", "give the directory with your code")
    if code is not None and not any(code.iterdir()):
        raise UsageError(f"--code: {code} is empty", "give the directory with your code")
    for option, file in (("--pip-config", request.pip_config), ("--ca-file", request.ca_file)):
        if file is not None and not file.is_file():
            raise UsageError(f"{option}: there is no file {file}", "check the path")
    if request.ca_file is not None and b"-----BEGIN CERTIFICATE-----" not in request.ca_file.read_bytes():
        raise UsageError(f"--ca-file: {request.ca_file} has no certificate in PEM format", "convert it: openssl x509 -inform der -in FILE")
    for argument in request.build_args:
        if not re.fullmatch(r"[A-Za-z_]\w*(=.*)?", argument, re.DOTALL):
            raise UsageError(f"--build-arg: {argument!r} is not NAME=VALUE", "write e.g. --build-arg HTTPS_PROXY=http://proxy:3128")


def _tag_part(name: str) -> str:
    """Return a name as a part of an image's tag."""
    part = re.sub(r"[^a-z0-9_.-]+", "-", name.lower()).strip("-._")
    return part[:40] or "code"


def _docker_build(
    arguments: list[str], stdin: bytes, name: str, base: str, on_progress: OnProgress, on_line: Callable[[str], None] | None
) -> None:
    """Run `docker build`; raise DockerError if it fails."""
    # With the engine's own builder, since another builder would not put the image into the engine.
    environment = {key: value for key, value in os.environ.items() if key != "BUILDX_BUILDER"}
    environment |= {"DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
    parser = ProgressParser()
    output: list[str] = []
    with subprocess.Popen(
        [docker_path(), "build", "--progress=plain", *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdin is not None  # noqa: S101 - both are pipes
        assert process.stdout is not None  # noqa: S101
        timer = threading.Timer(TIMEOUT, process.kill)
        timer.start()
        threading.Thread(target=_feed, args=(process.stdin, stdin), daemon=True).start()
        try:
            for line in (raw_line.decode(errors="replace").rstrip("\n") for raw_line in process.stdout):
                output.append(line)
                if on_line is not None:
                    on_line(line)
                if (progress := parser.read(line)) is not None:
                    on_progress(progress)
            code = process.wait()
        except BaseException:
            process.terminate()
            raise
        finally:
            timed_out = not timer.is_alive()
            timer.cancel()
    if timed_out:
        raise DockerError(f"the image {name} was not built within {TIMEOUT / 3600:g} hours", "--verbose shows what it waits for")
    if code:
        raise failure("\n".join(output), name=name, base=base, last="\n".join(parser.last))


def _feed(stdin: IO[bytes], content: bytes) -> None:
    """Write the context. If no engine answers, docker closes the pipe early, and its output says why."""
    with contextlib.suppress(OSError), stdin:
        stdin.write(content)
