"""A spec under construction, with the field of the TFJob that each of its values comes from."""

from dataclasses import dataclass, field
from typing import Any

from launcher.render.kubernetes.objects import TRAINER
from launcher.spec.problems import Path
from launcher.tfjob.reading import Reading


@dataclass(frozen=True)
class Shared:
    """A setting that stands in `kubernetes` where all roles have the same, else in each role's override.

    `value` is as the spec has it; `override_key` and `override` are as a pod template has it, in the pod or in the container.
    """

    value: Any
    override_key: str
    override: Any
    source: Path
    of_container: bool = False


@dataclass
class ExtraContainer:
    """An init container or a sidecar of a role: its fields, and what only an override of the container of its name can say."""

    kind: str  # init_containers or sidecars
    path: Path
    fields: dict[str, Any]
    override: dict[str, Any]
    mounts: list[Any] = field(default_factory=list)  # as a pod template has them


@dataclass
class RoleDraft:
    """One role: its fields, and what only an override of its pods can say."""

    kind: str  # as the TFJob spells it: PS, Worker, Master
    name: str  # as the spec does
    path: Path
    reading: Reading
    replicas: int = 1
    policy: tuple[str, Path] | None = None
    policy_of_template: tuple[str, Path] | None = None
    grace: tuple[int, Path] | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Path] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    pod: dict[str, Any] = field(default_factory=dict)
    container: dict[str, Any] = field(default_factory=dict)
    extra_containers: list[ExtraContainer] = field(default_factory=list)
    volumes: list[dict[str, Any]] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)  # volumes
    shared: dict[str, Shared] = field(default_factory=dict)
    is_entrypoint: bool = True  # the image's entrypoint runs, as there is no command

    def put(self, key: str, value: Any, source: Path) -> None:
        """Set a field of the role."""
        self.fields[key] = value
        self.sources[key] = source

    def override(self) -> dict[str, Any]:
        """Return the override of the role's pods; an empty one where there is nothing to say."""
        container = dict(self.container)
        pod = dict(self.pod)
        if self.mounts:
            container["volumeMounts"] = self.mounts
        if self.volumes:
            pod["volumes"] = self.volumes
        if container:
            pod["containers"] = [{"name": TRAINER, **container}]
        # Sidecars are among the init containers.
        given = [(one.fields["name"], one.override | ({"volumeMounts": one.mounts} if one.mounts else {})) for one in self.extra_containers]
        if others := [{"name": name, **override} for name, override in given if override]:
            pod["initContainers"] = others
        made = {"metadata": self.metadata, "spec": pod}
        return {key: value for key, value in made.items() if value}


@dataclass
class Draft:
    """The spec of one TFJob."""

    reading: Reading
    spec: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, Path] = field(default_factory=dict)
    roles: list[RoleDraft] = field(default_factory=list)
    success: str = "chief"
    is_alone: bool = False  # one replica in all: TFJob then sets no TF_CONFIG

    def put(self, path: Path, value: Any, source: Path) -> None:
        """Set a value of the spec."""
        inside = self.spec
        for part in path[:-1]:
            inside = inside.setdefault(str(part), {})
        inside[str(path[-1])] = value
        self.origins[path] = source

    def origin(self, path: Path) -> Path:
        """Return the field of the TFJob that a path of the spec comes from, or the one nearest to it."""
        return next((self.origins[path[:length]] for length in range(len(path), 0, -1) if path[:length] in self.origins), ())

    @property
    def leading(self) -> str:
        """The role whose task decides about success."""
        return "chief" if any(role.name == "chief" for role in self.roles) else "worker"
