"""The last steps, for all roles together: what all roles have alike moves up, and all that no field says goes into overrides."""

from launcher.tfjob import pod_volumes
from launcher.tfjob.draft import Draft, RoleDraft, Shared

# Fields of roles that a spec may say once for all.
_UP = ("image", "command", "init_containers", "sidecars")
_NO_TF_CONFIG = {"name": "TF_CONFIG", "$patch": "delete"}


def finish(draft: Draft) -> None:
    """Complete the spec."""
    draft.put(("version",), 1, ())
    draft.put(("security",), "image", ())
    pod_volumes.share(draft)
    _share(draft)
    if draft.is_alone:
        draft.roles[0].container.setdefault("env", []).append(_NO_TF_CONFIG)
    _write_extra_containers(draft)
    own = {role.name: override for role in draft.roles if (override := role.override())}
    if own:
        draft.put(("kubernetes", "overrides"), own, ())
    _move_up(draft)
    for role in draft.roles:
        replicas = {"replicas": role.replicas} if role.replicas > 1 else {}
        draft.put(("roles", role.name), {**replicas, **role.fields}, role.path)
        for key, source in role.sources.items():
            draft.origins["roles", role.name, key] = source
        draft.origins["roles", role.name, "replicas"] = (*role.path, "replicas")


def _share(draft: Draft) -> None:
    """Write what all roles have alike into `kubernetes`, and the rest into overrides."""
    for key in dict.fromkeys(key for role in draft.roles for key in role.shared):
        having = [role.shared.get(key) for role in draft.roles]
        first = next(shared for shared in having if shared is not None)
        if all(shared is not None and shared.value == first.value for shared in having):
            draft.put(("kubernetes", key), first.value, first.source)
            continue
        for role, shared in zip(draft.roles, having, strict=True):
            if shared is not None:
                _override(role, shared)


def _write_extra_containers(draft: Draft) -> None:
    """Write init containers and sidecars into their roles; of the spec they have the policy of images that they did not have."""
    for role in draft.roles:
        for kind in dict.fromkeys(one.kind for one in role.extra_containers):
            found = [one for one in role.extra_containers if one.kind == kind]
            role.put(kind, [one.fields for one in found], found[0].path[:-1])
        for one in role.extra_containers:
            if "image_pull_policy" in draft.spec.get("kubernetes", {}):
                one.override.setdefault("imagePullPolicy", None)


def _override(role: RoleDraft, shared: Shared) -> None:
    where = role.container if shared.of_container else role.pod
    where |= {shared.override_key: shared.override} if shared.override_key else shared.override


def _move_up(draft: Draft) -> None:
    for key in _UP:
        values = [role.fields.get(key) for role in draft.roles]
        if values[0] is None or any(value != values[0] for value in values):
            continue
        draft.put((key,), values[0], draft.roles[0].sources[key])
        for role in draft.roles:
            del role.fields[key], role.sources[key]
