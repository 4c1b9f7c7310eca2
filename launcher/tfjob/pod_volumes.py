"""The volumes of a pod template and where its containers mount them."""

import posixpath
from typing import Any

from launcher.plan.container_paths import CONTAINER_PARENT
from launcher.spec import names
from launcher.spec.containers import Mount
from launcher.spec.kubernetes import Volume
from launcher.spec.problems import Path
from launcher.tfjob.draft import Draft, RoleDraft
from launcher.tfjob.reading import as_valid

# How a pod template calls what a mount of a container beside the task says -> how `mounts` does.
_MOUNT = {"name": "volume", "mountPath": "mount_path", "subPath": "sub_path", "readOnly": "read_only"}
# The directory of a program's parent.
_PARENT = posixpath.dirname(CONTAINER_PARENT)
_OURS = (_PARENT, names.TMP, "/dev/shm")  # noqa: S108


def read(role: RoleDraft, path: Path) -> None:
    """Carry over the pod's volumes; those with a name of the run's own volumes get another one."""
    given = [role.reading.mapping((*path, index)) for index in range(len(role.reading.items(path)))]
    taken = {str(volume.get("name")) for volume in given}
    for index, volume in enumerate(given):
        name = role.reading.name((*path, index))
        if name is None:
            continue
        if names.is_reserved_volume(name):
            free = next(other for other in (f"tfjob-{name}", f"tfjob-{name}-2") if other not in taken)
            role.renamed[name] = free
            role.reading.remark((*path, index, "name"), f"is called {free}: {name} is one of the run's own volumes")
        role.volumes.append({**volume, "name": role.renamed.get(name, name)})


def renamed(role: RoleDraft, container: dict[str, Any]) -> dict[str, Any]:
    """Return a container that mounts volumes by the names that they have in the run."""
    renamed_container = dict(container)
    for key in ("volumeMounts", "volumeDevices"):
        if isinstance(renamed_container.get(key), list):
            renamed_container[key] = [
                {**one, "name": role.renamed[one["name"]]} if isinstance(one, dict) and str(one.get("name")) in role.renamed else one
                for one in renamed_container[key]
            ]
    return renamed_container


def read_mounts(role: RoleDraft, path: Path) -> None:
    """Carry over where the task's container mounts volumes."""
    for index in range(len(role.reading.items(path))):
        below = (*path, index)
        given = dict(role.reading.mapping(below))
        name, where = role.reading.text((*below, "name")), role.reading.text((*below, "mountPath"))
        if name is None or where is None:
            expected = "name and mountPath"
            role.reading.refuse(below, "a mount lacks its volume or its place", expected, "add what is missing")
            continue
        plain = posixpath.normpath(where)
        if plain == _PARENT:
            message = f"{plain} is where the parent of the task's program is"
            role.reading.refuse((*below, "mountPath"), message, f"a path other than {_PARENT}", "mount it elsewhere")
        mount_path = plain if plain in _OURS else where
        role.mounts.append({**given, "name": role.renamed.get(name, name), "mountPath": mount_path})


def share(draft: Draft) -> None:
    """Move volumes that a spec can say in `volumes` there, from the roles' overrides."""
    listed: list[dict[str, Any]] = []
    mount_paths: set[str] = set()
    for name in dict.fromkeys(volume["name"] for role in draft.roles for volume in role.volumes):
        users = {role.name: _spec_form(role, name) for role in draft.roles if any(volume["name"] == name for volume in role.volumes)}
        form = _agreed(list(users.values()))
        mount_path = posixpath.normpath(form["mount_path"]) if form and "mount_path" in form else None
        if form is None or mount_path in mount_paths:
            continue
        if mount_path is not None:
            mount_paths.add(mount_path)
            mounting = [role for role, one in users.items() if one and "mount_path" in one]
            form |= {"roles": mounting} if len(mounting) < len(draft.roles) else {}
        listed.append(form)
        for role in draft.roles:
            role.volumes = [volume for volume in role.volumes if volume["name"] != name]
            role.mounts = [mount for mount in role.mounts if mount["name"] != name]
            for one in role.extra_containers:
                found = [mount for mount in one.mounts if _is_of(mount, name)]
                one.mounts = [mount for mount in one.mounts if mount not in found]
                if found:
                    one.fields.setdefault("mounts", []).extend(map(mount_of, found))
    if listed:
        draft.put(("volumes",), listed, draft.roles[0].path)


def _agreed(forms: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Return the volume that all roles mean by a name; those whose task does not mount it say nothing of where."""
    known = [form for form in forms if form is not None]
    mounted = [form for form in known if "mount_path" in form]
    agree = all(form == mounted[0] for form in mounted) and all(form["source"] == known[0]["source"] for form in known)
    return dict((mounted or known)[0]) if len(known) == len(forms) and agree else None


def _is_of(mount: Any, name: str) -> bool:
    return isinstance(mount, dict) and mount.get("name") == name


def mount_of(mount: Any) -> dict[str, Any] | None:
    """Return where a container beside the task mounts a volume, as `mounts` has it; None where that cannot say it."""
    if not isinstance(mount, dict) or set(mount) - set(_MOUNT):
        return None
    form = {_MOUNT[key]: value for key, value in mount.items() if value not in (None, "")}
    form["read_only"] = mount.get("readOnly") or False
    return as_valid(Mount, form)


def _spec_form(role: RoleDraft, name: str) -> dict[str, Any] | None:
    """Return a volume as `volumes` has it, or None where that cannot say it, or nothing of the role mounts it."""
    [volume, *more] = [volume for volume in role.volumes if volume["name"] == name]
    mounts = [mount for mount in role.mounts if mount["name"] == name]
    extra_mounts = [mount_of(mount) for one in role.extra_containers for mount in one.mounts if _is_of(mount, name)]
    if more or len(mounts) > 1 or not (mounts or extra_mounts) or None in extra_mounts:
        return None
    source = {key: value for key, value in volume.items() if key != "name" and value is not None}
    form: dict[str, Any] = {"name": name, "source": source}
    if mounts:
        [mount] = mounts
        if set(mount) - {"name", "mountPath", "readOnly", "subPath"}:
            return None
        form |= {"mount_path": mount["mountPath"], "read_only": mount.get("readOnly") or False}
        form |= {"sub_path": mount["subPath"]} if mount.get("subPath") else {}
    return as_valid(Volume, form)
