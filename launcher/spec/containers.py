"""Sections about containers: images, commands, variables, and the init containers and sidecars beside a task."""

from typing import Annotated

from pydantic import AfterValidator, Discriminator, Field, Tag

from launcher.spec import names
from launcher.spec.fields import SECRET, TEXT, Cpu, Memory, ObjectName, Section, kind_of_value


class FromSecret(Section):
    """The value of an environment variable that no file has: on Kubernetes a Secret's, elsewhere that variable where `launcher` is called."""

    secret: ObjectName = Field(description="The Secret.")
    key: Annotated[str, AfterValidator(names.check_secret_key)] = Field(description="The key of the value in it.")


Env = dict[str, Annotated[Annotated[str, Tag(TEXT)] | Annotated[FromSecret, Tag(SECRET)], Discriminator(kind_of_value)]]
Image = Annotated[str, AfterValidator(names.check_image)]
SubPath = Annotated[str, AfterValidator(names.check_sub_path)]
Command = Annotated[list[str], Field(min_length=1)]


class Mount(Section):
    """The mount of one of the spec's `volumes`, or of the run's own, in a container beside a task."""

    volume: Annotated[str, Field(min_length=1)] = Field(
        description="The name of one of `volumes`; `run` is the run's own, where its task has that."
    )
    mount_path: Annotated[str, AfterValidator(names.check_path)] = Field(description="The path in the container.")
    sub_path: SubPath | None = Field(None, description="A directory of the volume, instead of all of it.")
    read_only: bool | None = Field(
        None, description="Whether the container can only read it. When left out: yes, but for an `emptyDir` and the run's own volume."
    )


class Container(Section):
    """A container beside each task: one of `init_containers` ends before the task starts, one of `sidecars` runs as long as it does."""

    name: Annotated[str, AfterValidator(names.check_container_name)] = Field(description="The container's name.")
    image: Image | None = Field(None, description="Its image; the task's when left out.")
    command: Command | None = Field(None, description="Its program, instead of the image's entrypoint.")
    args: list[str] = Field(default_factory=list, description="Words that follow the `command`, or that the image's entrypoint is given.")
    env: Env = Field(default_factory=dict, description="Its environment variables; it gets none of the task's.")
    working_dir: Annotated[str, AfterValidator(names.check_path)] | None = Field(
        None, description="The directory in which its program starts; the image's when left out."
    )
    cpu: Cpu | None = Field(None, description="CPU cores it gets. No limit when left out.")
    memory: Memory | None = Field(None, description="Memory it gets. No limit when left out.")
    mounts: list[Mount] = Field(default_factory=list, description="The mounts of the spec's `volumes`.")


# Of the spec, and of a role.
InitContainers = Annotated[
    list[Container],
    Field(
        description="Containers that end, one after the other, before each task starts. A role's come after the spec's, or in place of one of that name. "
        "Left out on this machine."
    ),
]
Sidecars = Annotated[
    list[Container],
    Field(
        description="Containers that run beside each task, on its network, and end with it, but under `docker compose up` alone. A role's come after the spec's, or in place of one of that "
        "name. Left out on this machine; on Kubernetes from 1.29 on."
    ),
]
