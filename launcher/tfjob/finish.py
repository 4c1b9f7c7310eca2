"""The last steps, for all roles: settings that all roles share move to the top of the spec, and those without a field into overrides."""

from launcher.tfjob import pod_volumes
from launcher.tfjob.draft import Draft, RoleDraft, Shared

# Fields of roles that the spec may also have at its top, for all roles.
_COMMON_FIELDS = ("image", "command", "init_containers", "sidecars")
_NO_TF_CONFIG = {"name": "TF_CONFIG", "$patch": "delete"}


def finish(draft: Draft) -> None:
    """Complete the spec."""
    draft.put(("version",), 1, ())
    draft.put(("security",), "image", ())
    pod_volumes.move_to_spec(draft)
    _share(draft)
    if draft.is_single_task:
        draft.roles[0].container.setdefault("env", []).append(_NO_TF_CONFIG)
    _write_extra_containers(draft)
    overrides = {role.name: override for role in draft.roles if (override := role.override())}
    if overrides:
        draft.put(("kubernetes", "overrides"), overrides, ())
    _move_common_fields(draft)
    for role in draft.roles:
        replicas = {"replicas": role.replicas} if role.replicas > 1 else {}
        draft.put(("roles", role.name), {**replicas, **role.fields}, role.path)
        for key, source in role.sources.items():
            draft.origins["roles", role.name, key] = source
        draft.origins["roles", role.name, "replicas"] = (*role.path, "replicas")


def _share(draft: Draft) -> None:
    """Write settings that all roles share into `kubernetes`, and others into overrides."""
    for key in dict.fromkeys(key for role in draft.roles for key in role.shared):
        settings = [role.shared.get(key) for role in draft.roles]
        first = next(shared for shared in settings if shared is not None)
        if all(shared is not None and shared.value == first.value for shared in settings):
            draft.put(("kubernetes", key), first.value, first.source)
            continue
        for role, shared in zip(draft.roles, settings, strict=True):
            if shared is not None:
                _override(role, shared)


def _write_extra_containers(draft: Draft) -> None:
    """Write init containers and sidecars into their roles; an override keeps the spec's `image_pull_policy` from them."""
    for role in draft.roles:
        for kind in dict.fromkeys(container.kind for container in role.extra_containers):
            containers = [container for container in role.extra_containers if container.kind == kind]
            role.put(kind, [container.fields for container in containers], containers[0].path[:-1])
        for container in role.extra_containers:
            if "image_pull_policy" in draft.spec.get("kubernetes", {}):
                container.override.setdefault("imagePullPolicy", None)


def _override(role: RoleDraft, shared: Shared) -> None:
    target = role.container if shared.of_container else role.pod
    target |= {shared.override_key: shared.override} if shared.override_key else shared.override


def _move_common_fields(draft: Draft) -> None:
    for key in _COMMON_FIELDS:
        values = [role.fields.get(key) for role in draft.roles]
        if values[0] is None or any(value != values[0] for value in values):
            continue
        draft.put((key,), values[0], draft.roles[0].sources[key])
        for role in draft.roles:
            del role.fields[key], role.sources[key]
