"""A spec under construction, with the field of the TFJob that each of its values comes from."""

from dataclasses import dataclass, field
from typing import Any

from launcher.render.kubernetes.objects import TRAINER_CONTAINER
from launcher.spec.problems import Path
from launcher.spec.role_programs import leader_role_name
from launcher.tfjob.field_reader import FieldReader


@dataclass(frozen=True)
class SharedSetting:
    """A setting that goes to `kubernetes` if all roles have the same, else to each role's override.

    `value` is the setting in the spec; `override_key` and `override` are its key and value in a pod template, in the pod or in the container. Without
    `override_key`, `override` is a mapping of several keys.
    """

    value: Any
    override_key: str
    override: Any
    source: Path
    of_container: bool = False


@dataclass
class ExtraContainer:
    """An init container or a sidecar of a role: its fields, and the settings for which it needs an override."""

    kind: str  # init_containers or sidecars
    path: Path
    fields: dict[str, Any]
    override: dict[str, Any]
    mounts: list[Any] = field(default_factory=list)  # as in a pod template


@dataclass
class RoleBuilder:
    """One role: its fields, and the settings for which its pods need an override."""

    kind: str  # as the TFJob spells it: PS, Worker, Master
    name: str  # as in the spec
    path: Path
    reader: FieldReader
    replicas: int = 1
    restart_policy: tuple[str, Path] | None = None
    template_restart_policy: tuple[str, Path] | None = None
    grace_period: tuple[int, Path] | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Path] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    pod: dict[str, Any] = field(default_factory=dict)
    container: dict[str, Any] = field(default_factory=dict)
    extra_containers: list[ExtraContainer] = field(default_factory=list)
    volumes: list[dict[str, Any]] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)  # old -> new names of volumes
    shared: dict[str, SharedSetting] = field(default_factory=dict)
    is_entrypoint: bool = True  # without a command, the image's entrypoint runs

    def set(self, key: str, value: Any, source: Path) -> None:
        """Set a field of the role."""
        self.fields[key] = value
        self.sources[key] = source

    def override(self) -> dict[str, Any]:
        """Return the override of the role's pods; it may be empty."""
        container = dict(self.container)
        pod = dict(self.pod)
        if self.mounts:
            container["volumeMounts"] = self.mounts
        if self.volumes:
            pod["volumes"] = self.volumes
        if container:
            pod["containers"] = [{"name": TRAINER_CONTAINER, **container}]
        # In a pod template, sidecars are init containers.
        overrides = [
            (extra.fields["name"], extra.override | ({"volumeMounts": extra.mounts} if extra.mounts else {}))
            for extra in self.extra_containers
        ]
        if extra_overrides := [{"name": name, **override} for name, override in overrides if override]:
            pod["initContainers"] = extra_overrides
        template = {"metadata": self.metadata, "spec": pod}
        return {key: value for key, value in template.items() if value}


@dataclass
class SpecBuilder:
    """The spec of one TFJob."""

    reader: FieldReader
    spec: dict[str, Any] = field(default_factory=dict)
    sources: dict[Path, Path] = field(default_factory=dict)
    roles: list[RoleBuilder] = field(default_factory=list)
    success: str = "chief"
    is_single_task: bool = False  # one replica in all: TFJob then sets no TF_CONFIG

    def set(self, path: Path, value: Any, source: Path) -> None:
        """Set a value of the spec."""
        parent = self.spec
        for part in path[:-1]:
            parent = parent.setdefault(str(part), {})
        parent[str(path[-1])] = value
        self.sources[path] = source

    def source_of(self, path: Path) -> Path:
        """Return the field of the TFJob that a path of the spec comes from, or the one nearest to it."""
        return next((self.sources[path[:length]] for length in range(len(path), 0, -1) if path[:length] in self.sources), ())

    @property
    def leader_role(self) -> str:
        """The name of the leader's role, whose task decides the run's success."""
        return leader_role_name([role.name for role in self.roles])
