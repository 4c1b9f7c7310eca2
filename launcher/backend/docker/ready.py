"""What a start needs first: an engine with Compose, an image that it has, and directories that it can see."""

import queue
import threading
from collections.abc import Iterator

from launcher import images
from launcher.backend.docker.engine import Endpoint, check_compose
from launcher.backend.docker.problems import explain
from launcher.docker_cli import DockerError, docker
from launcher.errors import LauncherError, UsageError
from launcher.spec.models import ClusterSpec
from launcher.spec.rules import is_directory_name

_PULL_WAIT = 3600.0


def prepare(spec: ClusterSpec, place: Endpoint) -> Iterator[str]:
    """Yield what is found or made, as it comes. Raises LauncherError with what is missing and what to do."""
    check_compose()
    check_directories(spec, place)
    name = images.image_for(spec)
    found = images.find(name)
    if found is not None:
        why = (
            "the spec names it" if spec.image else "the trainer's own, for a spec without GPUs" if name == images.DEFAULT_IMAGE else "ours"
        )
        yield f"image {name} is there ({found.size / 1e9:.2f} GB; {why})"
    elif images.is_ours(name):
        yield f"image {name} is not there yet: it is built now, as `{images.build_command(name)}` does"
        yield from _build(gpu=name == images.GPU_IMAGE)
    else:
        yield f"image {name} is not there yet: it is pulled now"
        _pull(name)


def check_directories(spec: ClusterSpec, place: Endpoint) -> None:
    """Raise UsageError where the engine is on another machine and the spec needs directories of this one."""
    if place.is_local:
        return
    where = f"the Docker engine is on another machine ({place.host}), which cannot mount directories of this one"
    if spec.code is not None:
        raise UsageError(
            f"{where}: code: {spec.code}",
            f"put it into an image: launcher image build --code {spec.code} --tag NAME, then image: NAME instead of code",
        )
    if spec.train is not None and is_directory_name(spec.train):
        raise UsageError(f"{where}: train.data: {spec.train.data}", "use data: download or synthetic, or put the files into an image")


def _pull(name: str) -> None:
    try:
        docker("pull", "--quiet", name, deadline=_PULL_WAIT)
    except DockerError as error:
        raise explain(error.output or error.message, f"pulling the image {name}") from error


def _build(*, gpu: bool) -> Iterator[str]:
    """Build our image, and yield each step as it is done."""
    from launcher.image_build.build import Request, build
    from launcher.image_build.steps import Step

    told: queue.SimpleQueue[str | LauncherError | None] = queue.SimpleQueue()

    def tell(what: object) -> None:
        if isinstance(what, Step) and what.seconds is None:
            told.put(f"building: {what.title}")

    def make() -> None:
        try:
            build(Request(gpu=gpu), tell)
        except LauncherError as error:
            told.put(error)
        else:
            told.put(None)

    threading.Thread(target=make, name="build", daemon=True).start()
    while (said := told.get()) is not None:
        if isinstance(said, LauncherError):
            raise said
        yield said
