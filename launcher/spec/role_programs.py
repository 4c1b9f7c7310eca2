"""The effective settings of each role: its own, else the spec's, for image, command, containers, volumes and restarts. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from launcher.spec.containers import Container, FromSecret
from launcher.spec.kubernetes import Volume
from launcher.spec.models import ClusterSpec, Role, Roles, Storage
from launcher.spec.problems import Path
from trainer.exit_codes import RestartWhen

ROLES = tuple(Roles.model_fields)


@dataclass(frozen=True)
class Program:
    """The program of a role that does not run the built-in trainer.

    `command` includes the role's `args`. If it is empty, the entrypoint of `image` runs with `args`. If `image` is None, it is the project's own.
    """

    image: str | None
    command: tuple[str, ...]
    args: tuple[str, ...]


def roles_of(spec: ClusterSpec) -> dict[str, Role]:
    """Return the roles that a spec has, by name."""
    roles = {name: getattr(spec.roles, name) for name in ROLES}
    return {name: role for name, role in roles.items() if role is not None}


def program_of(spec: ClusterSpec, role: Role) -> Program:
    """Return what the tasks of one of the spec's roles run."""
    command = role.command or spec.command or []
    return Program(role.image or spec.image, tuple([*command, *role.args] if command else ()), tuple(role.args))


def role_has_parent(spec: ClusterSpec, role: Role) -> bool:
    """Return whether the containers of a role start the trainer or its parent; an image's entrypoint runs without a parent."""
    program = program_of(spec, role)
    return spec.train is not None or bool(program.command and (spec.supervise or not program.image))


def required_roles(spec: ClusterSpec) -> frozenset[str]:
    """Return the roles that must exit with 0 for a run of a user's own program to succeed."""
    roles = roles_of(spec)
    return frozenset({leader_role_name(roles), *({"worker"} & set(roles) if spec.success == "all_workers" else ())})


def images_of(spec: ClusterSpec) -> set[str]:
    """Return the images that a spec names, for all tasks or for a role."""
    return {image for image in (spec.image, *(role.image for role in roles_of(spec).values())) if image is not None}


def init_containers_of(spec: ClusterSpec, role: Role) -> list[Container]:
    """Return the init containers of a role, in order: the spec's, then the role's; a role's replaces the spec's of the same name."""
    return list({container.name: container for container in (*spec.init_containers, *role.init_containers)}.values())


def sidecars_of(spec: ClusterSpec, role: Role) -> list[Container]:
    """Return the sidecars of a role, in order: the spec's, then the role's; a role's replaces the spec's of the same name."""
    return list({container.name: container for container in (*spec.sidecars, *role.sidecars)}.values())


def extra_containers_of(spec: ClusterSpec, role: Role) -> list[Container]:
    """Return the init containers and sidecars of a role."""
    return [*init_containers_of(spec, role), *sidecars_of(spec, role)]


def has_init_containers(spec: ClusterSpec) -> bool:
    """Return whether any task waits for an init container."""
    return any(path[-2] == "init_containers" for path, _ in containers_of(spec))


def has_sidecars(spec: ClusterSpec) -> bool:
    """Return whether any task has a sidecar."""
    return any(path[-2] == "sidecars" for path, _ in containers_of(spec))


def containers_of(spec: ClusterSpec) -> list[tuple[Path, Container]]:
    """Return every init container and sidecar of a spec with its path in the spec."""
    sections: list[tuple[Path, ClusterSpec | Role]] = [((), spec), *((("roles", name), role) for name, role in roles_of(spec).items())]
    return [
        ((*path, key, index), container)
        for path, section in sections
        for key, listed in (("init_containers", section.init_containers), ("sidecars", section.sidecars))
        for index, container in enumerate(listed)
    ]


def container_secrets(spec: ClusterSpec) -> list[tuple[str, FromSecret]]:
    """Return the variables of init containers and sidecars whose values come from secrets."""
    variables = (item for _, container in containers_of(spec) for item in container.env.items())
    return [(name, value) for name, value in variables if isinstance(value, FromSecret)]


def volumes_of(spec: ClusterSpec) -> list[Volume]:
    """Return the spec's additional volumes, including those for Kubernetes only."""
    return [*spec.volumes, *spec.kubernetes.volumes]


def storage_of(spec: ClusterSpec) -> Storage | None:
    """Return the volume of the run directory; None if all programs run in the user's own images and the spec asks for no volume."""
    all_images_are_users = spec.train is None and all(program_of(spec, role).image for role in roles_of(spec).values())
    return spec.storage or (None if all_images_are_users and spec.kubernetes.claim is None else Storage())


def has_tensorboard(spec: ClusterSpec) -> bool:
    """Return whether TensorBoard runs beside the containers of a run: it reads the run's volume."""
    return spec.tensorboard is not None and storage_of(spec) is not None


def leader_role_name(roles: Collection[str]) -> str:
    """Return the name of the leader's role: the chief's, or that of the first worker in a cluster without a chief."""
    return "chief" if "chief" in roles else "worker"


def leading_role(spec: ClusterSpec) -> Role:
    """Return the role of the leader; a Role with the defaults if the spec has neither chief nor worker."""
    roles = roles_of(spec)
    return roles.get(leader_role_name(roles)) or Role()


def mount_of(spec: ClusterSpec) -> Literal["one", "all"]:
    """Return which tasks mount the run's volume on Kubernetes. `one`: the leader, and on its node the evaluator and TensorBoard; `all`: every task.

    All tasks of a user's program may write to it. With the built-in trainer only the leader and the evaluator do; ps and workers get the restored
    values from the leader. If the leader is one of several workers, all of them mount it, since the pods of one role are alike.
    """
    if spec.storage is not None and spec.storage.mount is not None:
        return spec.storage.mount
    tasks = sum(role.replicas for role in roles_of(spec).values())
    writers = leading_role(spec).replicas if spec.train is not None else tasks
    return "all" if writers > 1 else "one"


def access_of(spec: ClusterSpec) -> str:
    """Return the access mode of a new claim for the run's volume."""
    access = spec.storage.access if spec.storage else None
    return access or ("ReadWriteOnce" if mount_of(spec) == "one" else "ReadWriteMany")


def sets_variables(dumped: Mapping[str, Any]) -> bool:
    """Return whether a spec as JSON values, dumped or written, sets environment variables, also by an override: their values may be passwords."""
    sections = [section for section in (dumped, *(dumped.get("roles") or {}).values()) if section]
    containers = [container for section in sections for key in ("init_containers", "sidecars") for container in section.get(key) or ()]
    overrides = (dumped.get("kubernetes") or {}).get("overrides")
    return any(section.get("env") for section in (*sections, *containers)) or _has_variable(overrides)


def _has_variable(override: Any) -> bool:
    """Return whether a part of a pod's override has the value of a container's variable."""
    if isinstance(override, list):
        return any(map(_has_variable, override))
    if not isinstance(override, Mapping):
        return False
    variables = override.get("env")
    has_value = isinstance(variables, list) and any(isinstance(one, Mapping) and one.get("value") for one in variables)
    return has_value or any(map(_has_variable, override.values()))


def program_summary(spec: ClusterSpec) -> str:
    """Return a text of what the tasks run: the workload, or each program once."""
    if spec.train is not None:
        return spec.train.workload
    programs = [program_of(spec, role) for role in roles_of(spec).values()]
    summaries = (" ".join(program.command or (f"the entrypoint of {program.image}", *program.args)) for program in programs)
    return "; ".join(dict.fromkeys(summaries))


def max_restarts(spec: ClusterSpec, role: Role) -> int:
    """Return how often a task of the role is started again after failures."""
    if role.restart == "never":
        return 0
    return spec.limits.max_restarts if role.max_restarts is None else role.max_restarts


def restarts_when(role: Role) -> RestartWhen:
    """Return the exits after which a program of the role is started again; for `never`, `max_restarts` is 0."""
    return "on_failure" if role.restart == "never" else role.restart
