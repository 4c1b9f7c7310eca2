"""The trainer's images by name, the image of each container of a spec, and the images that the engine has."""

import json
import re
from dataclasses import dataclass

from launcher import __version__
from launcher.docker_cli import DockerError, docker
from launcher.plan.models import Task
from launcher.spec import role_programs
from launcher.spec.models import ClusterSpec

# The prefix localhost keeps Docker from asking a public registry, where anyone could have taken our name.
REPOSITORY = "localhost/tf-launcher/trainer"
DEFAULT_IMAGE = f"{REPOSITORY}:{__version__}"
GPU_IMAGE = f"{DEFAULT_IMAGE}-gpu"

# Tasks run as this user and group. They own the directory of runs in the image, and therefore a new volume mounted there.
USER = 1000

# Labels: the digest of what the trainer's part of an image was built from (launcher/image_build/context.py), and the base image.
SOURCE_DIGEST_LABEL = "tf-launcher.sources"
BASE_IMAGE_LABEL = "org.opencontainers.image.base.name"

# The message for a missing image, of Docker and of Podman.
_ABSENT = re.compile("no such image|no such object|image not known", re.IGNORECASE)


@dataclass(frozen=True)
class Image:
    """An image that the engine has. `size` in bytes, all layers."""

    name: str
    id: str
    size: int
    labels: dict[str, str]


def spec_image(spec: ClusterSpec) -> str:
    """Return the image of containers that name none: the spec's, else the trainer's, with CUDA if a role asks for GPUs."""
    if spec.image:
        return spec.image
    return GPU_IMAGE if any(role.gpus for role in role_programs.roles_of(spec).values()) else DEFAULT_IMAGE


def task_image(task: Task, spec: ClusterSpec) -> str:
    """Return the image of a task's container: its role's, else that of `spec_image`."""
    return task.image or spec_image(spec)


def tensorboard_image(spec: ClusterSpec) -> str:
    """Return the image of TensorBoard's container: its own, else that of `spec_image`."""
    return (spec.tensorboard and spec.tensorboard.image) or spec_image(spec)


def attendant_image(spec: ClusterSpec) -> str:
    """Return the image of the attendant's container: its own, else that of `spec_image`."""
    return (spec.kubernetes.attendant and spec.kubernetes.attendant.image) or spec_image(spec)


def all_for(spec: ClusterSpec, *, tensorboard: bool | None = None) -> list[str]:
    """Return the images of all containers of `spec` but the attendant, each once; TensorBoard's first, if it has a container.

    `tensorboard` says whether there is one; by default, there is if the spec asks for it and the run has a volume.
    """
    default = spec_image(spec)
    has_tensorboard = role_programs.has_tensorboard(spec) if tensorboard is None else tensorboard
    of_tasks = (role.image or default for role in role_programs.roles_of(spec).values())
    of_containers = (container.image for _, container in role_programs.containers_of(spec) if container.image)
    return list(dict.fromkeys([*([tensorboard_image(spec)] if has_tensorboard else []), *of_tasks, *of_containers]))


def is_trainer_image(name: str) -> bool:
    """Return whether `launcher image build` builds an image of that name by default."""
    return name in {DEFAULT_IMAGE, GPU_IMAGE}


def build_command(name: str) -> str:
    """Return the command that builds the image called `name`, for messages. It must be one of the trainer's."""
    return "launcher image build --gpu" if name == GPU_IMAGE else "launcher image build"


def find(name: str) -> Image | None:
    """Return the image called `name`, or None if the engine has none. Raises DockerError if the engine does not answer."""
    try:
        inspected = json.loads(docker("image", "inspect", name))[0]
    except DockerError as error:
        if _ABSENT.search(error.output):
            return None
        raise
    labels = (inspected.get("Config") or {}).get("Labels") or {}
    return Image(name=name, id=inspected["Id"], size=int(inspected["Size"]), labels=labels)
