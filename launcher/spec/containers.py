"""Sections about containers: images, commands, variables, and the init containers and sidecars beside a task."""

from typing import Annotated

from pydantic import AfterValidator, Discriminator, Field, Tag

from launcher.spec import names
from launcher.spec.fields import SECRET, TEXT, Cpu, Memory, ObjectName, Section, kind_of_value


class FromSecret(Section):
    """The source of a variable's value that no file contains: on Kubernetes a Secret, elsewhere the variable of that name where `launcher` is called."""

    secret: ObjectName = Field(description="The Secret.")
    key: Annotated[str, AfterValidator(names.check_secret_key)] = Field(description="The key of the value in the Secret.")


Env = dict[str, Annotated[Annotated[str, Tag(TEXT)] | Annotated[FromSecret, Tag(SECRET)], Discriminator(kind_of_value)]]
Image = Annotated[str, AfterValidator(names.check_image)]
SubPath = Annotated[str, AfterValidator(names.check_sub_path)]
Command = Annotated[list[str], Field(min_length=1)]


class Mount(Section):
    """A mount in an init container or sidecar: of one of the spec's `volumes`, or of the run's own volume."""

    volume: Annotated[str, Field(min_length=1)] = Field(
        description="The name of one of `volumes`; `run` is the run's own volume, if the task mounts that."
    )
    mount_path: Annotated[str, AfterValidator(names.check_container_path)] = Field(description="The path in the container.")
    sub_path: SubPath | None = Field(None, description="A directory of the volume to mount; the whole volume when left out.")
    read_only: bool | None = Field(
        None, description="Whether the mount is read-only. When left out: true, except for an `emptyDir` and the run's own volume."
    )


class Container(Section):
    """A container beside each task. One of `init_containers` ends before the task starts; one of `sidecars` runs as long as the task does."""

    name: Annotated[str, AfterValidator(names.check_container_name)] = Field(description="The container's name.")
    image: Image | None = Field(None, description="Its image; the task's when left out.")
    command: Command | None = Field(None, description="Its program, instead of the image's entrypoint.")
    args: list[str] = Field(
        default_factory=list, description="Arguments of the `command`, added to it; without one, of the image's entrypoint."
    )
    env: Env = Field(default_factory=dict, description="Its environment variables; it does not get the task's.")
    working_dir: Annotated[str, AfterValidator(names.check_container_path)] | None = Field(
        None, description="The directory in which its program starts; the image's when left out."
    )
    cpu: Cpu | None = Field(None, description="CPU cores it gets. No limit when left out.")
    memory: Memory | None = Field(None, description="Memory it gets. No limit when left out.")
    mounts: list[Mount] = Field(default_factory=list, description="The mounts of the spec's `volumes`.")


# Of the spec, and of a role.
InitContainers = Annotated[
    list[Container],
    Field(
        description="Containers that run one after the other, and end, before each task starts. A role's come after the spec's, and replace those of the same name. "
        "Ignored on this machine."
    ),
]
Sidecars = Annotated[
    list[Container],
    Field(
        description="Containers that run beside each task, on its network, and end with it, except with plain `docker compose up`. A role's come after the spec's, and replace those of the "
        "same name. Ignored on this machine; Kubernetes must be 1.29 or newer."
    ),
]
