"""Images: the names of the trainer's, the one that each container of a spec starts from, and whether the engine has it."""

import json
import re
from dataclasses import dataclass

from launcher import __version__
from launcher.docker_cli import DockerError, docker
from launcher.plan.models import Task
from launcher.spec import role_programs
from launcher.spec.models import ClusterSpec
from launcher.spec.role_programs import roles_of

# The prefix localhost keeps Docker from asking a public registry, where anyone could have taken our name.
REPOSITORY = "localhost/tf-launcher/trainer"
DEFAULT_IMAGE = f"{REPOSITORY}:{__version__}"
GPU_IMAGE = f"{DEFAULT_IMAGE}-gpu"

# Tasks run as this user and group. They own the directory of runs in the image, and therefore a new volume mounted there.
USER = 1000

# The health check of a task's container: exit code 0 or 1, and one line that says why.
HEALTH_COMMAND = ("python", "-P", "-m", "trainer", "--health")

# The label with the digest of the trainer's sources that an image was built from: launcher/image_build/context.py.
SOURCE_DIGEST = "tf-launcher.sources"
BASE_NAME = "org.opencontainers.image.base.name"

# The message for a missing image, of Docker and of Podman.
_ABSENT = re.compile("no such image|no such object|image not known", re.IGNORECASE)


@dataclass(frozen=True)
class Image:
    """An image that the engine has. `size` in bytes, all layers."""

    name: str
    id: str
    size: int
    labels: dict[str, str]


def image_for(spec: ClusterSpec) -> str:
    """Return the image that the containers of `spec` start from: its own, or ours, with CUDA where a role asks for GPUs."""
    if spec.image:
        return spec.image
    return GPU_IMAGE if any(role.gpus for role in roles_of(spec).values()) else DEFAULT_IMAGE


def image_of(task: Task, spec: ClusterSpec) -> str:
    """Return the image that a task's container starts from: its role's, the spec's or ours."""
    return task.image or image_for(spec)


def tensorboard_image(spec: ClusterSpec) -> str:
    """Return the image that TensorBoard's container starts from: its own, else the spec's or ours."""
    return (spec.tensorboard and spec.tensorboard.image) or image_for(spec)


def attendant_image(spec: ClusterSpec) -> str:
    """Return the image that the attendant's container starts from: its own, else the spec's or ours."""
    return (spec.kubernetes.attendant and spec.kubernetes.attendant.image) or image_for(spec)


def all_for(spec: ClusterSpec, *, tensorboard: bool | None = None) -> list[str]:
    """Return the images of all containers of `spec`, each once; TensorBoard's first, if it has a container.

    `tensorboard` says whether there is one; by default, there is if the spec asks for it and the run has a volume.
    """
    default = image_for(spec)
    has_tensorboard = role_programs.has_tensorboard(spec) if tensorboard is None else tensorboard
    of_tasks = (role.image or default for role in role_programs.roles_of(spec).values())
    of_containers = (container.image for _, container in role_programs.containers_of(spec) if container.image)
    return list(dict.fromkeys([*([tensorboard_image(spec)] if has_tensorboard else []), *of_tasks, *of_containers]))


def is_ours(name: str) -> bool:
    """Return whether `launcher image build` builds an image of that name by default."""
    return name in {DEFAULT_IMAGE, GPU_IMAGE}


def build_command(name: str) -> str:
    """Return the command that builds the image called `name`, for messages. It must be one of ours."""
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
