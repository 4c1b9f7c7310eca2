"""The volumes of a pod template and where its containers mount them."""

import posixpath
from typing import Any

from pydantic import ValidationError

from launcher.plan.places import CONTAINER_PARENT
from launcher.spec import names
from launcher.spec.kubernetes import Volume
from launcher.spec.problems import Path
from launcher.tfjob.draft import Draft, RoleDraft

_TMP = "/tmp"  # noqa: S108 - of the container
# Where the parent of a program is.
_PARENT = posixpath.dirname(CONTAINER_PARENT)
_OURS = (_PARENT, _TMP, "/dev/shm")  # noqa: S108


def read(role: RoleDraft, path: Path) -> None:
    """Carry over the pod's volumes; those with a name of the run's own volumes get another one."""
    given = [role.reading.mapping((*path, index)) for index in range(len(role.reading.items(path)))]
    taken = {str(volume.get("name")) for volume in given}
    for index, volume in enumerate(given):
        name = role.reading.name((*path, index))
        if name is None:
            continue
        if names.is_own_volume(name):
            free = next(other for other in (f"tfjob-{name}", f"tfjob-{name}-2") if other not in taken)
            role.renamed[name] = free
            role.reading.remark((*path, index, "name"), f"is called {free}: {name} is one of the run's own volumes")
        role.volumes.append({**volume, "name": role.renamed.get(name, name)})


def renamed(role: RoleDraft, container: dict[str, Any]) -> dict[str, Any]:
    """Return a container that mounts volumes by the names that they have in the run."""
    kept = dict(container)
    for key in ("volumeMounts", "volumeDevices"):
        if isinstance(kept.get(key), list):
            kept[key] = [
                {**one, "name": role.renamed[one["name"]]} if isinstance(one, dict) and str(one.get("name")) in role.renamed else one
                for one in kept[key]
            ]
    return kept


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
        role.keeps_tmp |= plain == _TMP
        place = plain if plain in _OURS else where
        role.mounts.append({**given, "name": role.renamed.get(name, name), "mountPath": place})


def share(draft: Draft) -> None:
    """Move volumes that a spec can say in `kubernetes.volumes` there, from the roles' overrides."""
    listed: list[dict[str, Any]] = []
    places: set[str] = set()
    for name in dict.fromkeys(volume["name"] for role in draft.roles for volume in role.volumes):
        users = [role for role in draft.roles if any(volume["name"] == name for volume in role.volumes)]
        forms = [_spec_form(role, name) for role in users]
        form = forms[0]
        if form is None or any(other != form for other in forms) or posixpath.normpath(form["mount_path"]) in places:
            continue
        places.add(posixpath.normpath(form["mount_path"]))
        if len(users) < len(draft.roles):
            form["roles"] = [role.name for role in users]
        listed.append(form)
        for role in users:
            role.volumes = [volume for volume in role.volumes if volume["name"] != name]
            role.mounts = [mount for mount in role.mounts if mount["name"] != name]
    if listed:
        draft.put(("kubernetes", "volumes"), listed, draft.roles[0].path)


def _spec_form(role: RoleDraft, name: str) -> dict[str, Any] | None:
    """Return a volume as `kubernetes.volumes` has it, or None where that cannot say it."""
    [volume, *more] = [volume for volume in role.volumes if volume["name"] == name]
    mounts = [mount for mount in role.mounts if mount["name"] == name]
    if more or len(mounts) != 1 or set(mounts[0]) - {"name", "mountPath", "readOnly", "subPath"}:
        return None
    [mount] = mounts
    source = {key: value for key, value in volume.items() if key != "name" and value is not None}
    form = {"name": name, "mount_path": mount["mountPath"], "source": source, "read_only": mount.get("readOnly") or False}
    if mount.get("subPath"):
        form["sub_path"] = mount["subPath"]
    try:
        Volume.model_validate(form)
    except ValidationError:
        return None
    return form
