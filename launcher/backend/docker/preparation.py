"""Prepares a start: checks that the engine has Compose and sees the directories, and finds, pulls or builds the image."""

import queue
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from launcher import images
from launcher.backend.docker.engine import Endpoint, compose_version
from launcher.backend.docker.errors import explain
from launcher.docker_cli import DockerError, docker
from launcher.errors import LauncherError, UsageError
from launcher.image_build.context import source_digest
from launcher.images import Image
from launcher.spec.container_rules import is_mounted
from launcher.spec.models import ClusterSpec
from launcher.spec.rules import is_directory_name

_PULL_TIMEOUT = 3600.0


def prepare(spec: ClusterSpec, endpoint: Endpoint) -> Iterator[str]:
    """Yield each step as a message. Raises LauncherError, which names what is missing and the remedy."""
    compose_version()  # raises if Compose is missing or too old
    check_directories(spec, endpoint)
    if spec.train is not None and spec.train.data == "download":
        yield "data: download puts the tasks on a network where programs of the engine's host reach TensorFlow's port (docs/docker.md)"
    for name in images.all_for(spec):
        yield from _image(spec, name)


def _image(spec: ClusterSpec, name: str) -> Iterator[str]:
    image = images.find(name)
    gpu = name == images.GPU_IMAGE
    if image is None and not images.is_trainer_image(name):
        yield f"pulling the image {name}"
        _pull(name)
    elif image is None:
        yield f"building the image {name} (`{images.build_command(name)}`)"
        yield from _build(gpu=gpu)
    elif _is_stale(spec, image):
        yield f"rebuilding the image {name}, which was built from other sources (`{images.build_command(name)}`)"
        try:
            yield from _build(gpu=gpu, base_image=image.labels.get(images.BASE_IMAGE_LABEL))
        except LauncherError as error:
            command = images.build_command(name)
            alternatives = f"or build it with the options of the last build: `{command}`; or use the old image: --set image={name}"
            raise LauncherError(error.message, f"{error.remedy}; {alternatives}") from error
    else:
        yield f"image {name} is there ({image.size / 1e9:.2f} GB; {_why(spec, image)})"


def _is_stale(spec: ClusterSpec, image: Image) -> bool:
    """Return whether our image is known to be built from other sources than the launcher's."""
    digest = image.labels.get(images.SOURCE_DIGEST_LABEL)
    return images.is_trainer_image(image.name) and spec.image is None and digest is not None and digest != source_digest()


def _why(spec: ClusterSpec, image: Image) -> str:
    if spec.image or not images.is_trainer_image(image.name):
        return "the spec names it"
    ours = "the trainer's own, for a spec with GPUs" if image.name == images.GPU_IMAGE else "the trainer's own, for a spec without GPUs"
    if images.SOURCE_DIGEST_LABEL in image.labels:
        return ours
    return f"{ours}; it does not name its sources: run `{images.build_command(image.name)}` after changes of the trainer"


def check_directories(spec: ClusterSpec, endpoint: Endpoint) -> None:
    """Raise UsageError if the spec needs directories that are missing here, or that an engine on another machine cannot mount."""
    if endpoint.is_local:
        if missing := next((volume for volume in spec.volumes if volume.path and not Path(volume.path).is_dir()), None):
            raise UsageError(
                f"the volume {missing.name} is the directory {missing.path}, which does not exist", "create it, or name another"
            )
        return
    engine = f"the Docker engine is on another machine ({endpoint.host}), which cannot mount directories of this one"
    if spec.code is not None:
        raise UsageError(
            f"{engine}: code: {spec.code}",
            f"put it into an image: launcher image build --code {spec.code} --tag NAME, then image: NAME instead of code",
        )
    if volume := next((volume for volume in spec.volumes if volume.path), None):
        raise UsageError(
            f"{engine}: the volume {volume.name}: {volume.path}", "name a directory of that machine: `source: {hostPath: {path: ...}}`"
        )
    if spec.train is not None and is_directory_name(spec.train) and not is_mounted(spec.volumes, spec.train.data):
        raise UsageError(f"{engine}: train.data: {spec.train.data}", "use data: download or synthetic, or put the files into an image")


def _pull(name: str) -> None:
    try:
        docker("pull", "--quiet", name, timeout=_PULL_TIMEOUT)
    except DockerError as error:
        raise _pull_error(error, name) from error


def _pull_error(error: DockerError, name: str) -> LauncherError:
    explained = explain(error.output or error.message, f"pulling the image {name}")
    if not re.search(r"dial tcp|no such host|connection refused|i/o timeout|TLS handshake|HTTP response to HTTPS", error.output):
        return explained
    return DockerError(
        explained.message,
        f"check the name in `image`, and that the engine reaches that registry: docker pull {name}; or build or load the image",
        error.output,
    )


def _build(*, gpu: bool, base_image: str | None = None) -> Iterator[str]:
    """Build our image, on `base_image` if given, and yield each step as it begins."""
    from launcher.image_build.build import BuildRequest, build
    from launcher.image_build.steps import Step

    messages: queue.SimpleQueue[str | Exception | None] = queue.SimpleQueue()

    def on_progress(event: object) -> None:
        if isinstance(event, Step) and event.seconds is None:
            messages.put(f"building: {event.title}")

    def run_build() -> None:
        try:
            build(BuildRequest(gpu=gpu, base_image=base_image), on_progress)
        except Exception as error:  # noqa: BLE001  raised below, in the thread that waits
            messages.put(error)
        else:
            messages.put(None)

    threading.Thread(target=run_build, name="build", daemon=True).start()
    while (message := messages.get()) is not None:
        if isinstance(message, Exception):
            raise message
        yield message
