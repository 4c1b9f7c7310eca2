"""The last steps, for all roles: settings that all roles share move to the top of the spec, settings that no field has go into overrides."""

from typing import Any

from launcher.render.kubernetes.objects import TRAINER_CONTAINER
from launcher.tfjob import pod_volumes
from launcher.tfjob.builder import RoleBuilder, SharedSetting, SpecBuilder
from launcher.tfjob.pod_containers import TENSORFLOW

# Fields of roles that the spec may also have at its top, for all roles.
_COMMON_FIELDS = ("image", "command", "init_containers", "sidecars")
_NO_TF_CONFIG = {"name": "TF_CONFIG", "$patch": "delete"}


def finish(builder: SpecBuilder) -> None:
    """Complete the spec."""
    builder.set(("version",), 1, ())
    builder.set(("security",), "image", ())
    pod_volumes.move_to_spec(builder)
    _move_shared_settings(builder)
    if builder.is_single_task:
        builder.roles[0].container.setdefault("env", []).append(_NO_TF_CONFIG)
    _write_extra_containers(builder)
    overrides = {role.name: override for role in builder.roles if (override := role.override())}
    if overrides:
        builder.set(("kubernetes", "overrides"), overrides, ())
    _move_common_fields(builder)
    for role in builder.roles:
        replicas = {"replicas": role.replicas} if role.replicas > 1 else {}
        builder.set(("roles", role.name), {**replicas, **role.fields}, role.path)
        for key, source in role.sources.items():
            builder.sources["roles", role.name, key] = source
        builder.sources["roles", role.name, "replicas"] = (*role.path, "replicas")
    builder.spec = _with_renamed_container(builder.spec)


def _with_renamed_container(value: Any) -> Any:
    """Return a part of the spec in which the resources of the task's container are found by its new name."""
    if isinstance(value, list):
        return [_with_renamed_container(item) for item in value]
    if not isinstance(value, dict):
        return value
    renamed = {key: _with_renamed_container(item) for key, item in value.items()}
    reference = renamed.get("resourceFieldRef")
    if isinstance(reference, dict) and reference.get("containerName") == TENSORFLOW:
        renamed["resourceFieldRef"] = {**reference, "containerName": TRAINER_CONTAINER}
    return renamed


def _move_shared_settings(builder: SpecBuilder) -> None:
    """Write settings that all roles share into `kubernetes`, and others into overrides."""
    for key in dict.fromkeys(key for role in builder.roles for key in role.shared):
        settings = [role.shared.get(key) for role in builder.roles]
        first = next(shared for shared in settings if shared is not None)
        if all(shared is not None and shared.value == first.value for shared in settings):
            builder.set(("kubernetes", key), first.value, first.source)
            continue
        for role, shared in zip(builder.roles, settings, strict=True):
            if shared is not None:
                _override(role, shared)


def _write_extra_containers(builder: SpecBuilder) -> None:
    """Write init containers and sidecars into their roles; with a shared `image_pull_policy`, which is the task's, an override takes it from them."""
    for role in builder.roles:
        for kind in dict.fromkeys(container.kind for container in role.extra_containers):
            containers = [container for container in role.extra_containers if container.kind == kind]
            role.set(kind, [container.fields for container in containers], containers[0].path[:-1])
        for container in role.extra_containers:
            if "image_pull_policy" in builder.spec.get("kubernetes", {}):
                container.override.setdefault("imagePullPolicy", None)


def _override(role: RoleBuilder, shared: SharedSetting) -> None:
    target = role.container if shared.of_container else role.pod
    target |= {shared.override_key: shared.override} if shared.override_key else shared.override


def _move_common_fields(builder: SpecBuilder) -> None:
    for key in _COMMON_FIELDS:
        values = [role.fields.get(key) for role in builder.roles]
        if values[0] is None or any(value != values[0] for value in values):
            continue
        builder.set((key,), values[0], builder.roles[0].sources[key])
        for role in builder.roles:
            del role.fields[key], role.sources[key]
