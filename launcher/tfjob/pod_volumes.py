"""Reads the volumes of a pod template and their mounts."""

import itertools
import posixpath
from typing import Any

from launcher.plan.container_paths import CONTAINER_PARENT
from launcher.spec import names
from launcher.spec.containers import Mount
from launcher.spec.kubernetes import Volume
from launcher.spec.problems import Path
from launcher.tfjob.builder import RoleBuilder, SpecBuilder
from launcher.tfjob.field_reader import as_valid

# A key of a mount in a pod template -> the key in `mounts`.
_MOUNT_KEYS = {"name": "volume", "mountPath": "mount_path", "subPath": "sub_path", "readOnly": "read_only"}
# The directory of a program's parent.
_TRAINER_PARENT_DIRECTORY = posixpath.dirname(CONTAINER_PARENT)
_PATHS_OF_THE_LAUNCHER = (_TRAINER_PARENT_DIRECTORY, names.TMP, "/dev/shm")  # noqa: S108


def read(role: RoleBuilder, path: Path) -> None:
    """Carry over the pod's volumes; those with a reserved name get another one."""
    volumes = [role.reader.mapping((*path, index)) for index in range(len(role.reader.items(path)))]
    taken = {str(volume.get("name")) for volume in volumes}
    for index, volume in enumerate(volumes):
        name = role.reader.name((*path, index))
        if name is None:
            continue
        if names.is_reserved_volume(name):
            numbered = (f"tfjob-{name}-{number}" for number in itertools.count(2))
            new_name = next(other for other in itertools.chain([f"tfjob-{name}"], numbered) if other not in taken)
            role.renamed[name] = new_name
            role.reader.add_remark((*path, index, "name"), f"is called {new_name}: {name} is one of the run's own volumes")
        role.volumes.append({**volume, "name": role.renamed.get(name, name)})


def with_renamed_volumes(role: RoleBuilder, container: dict[str, Any]) -> dict[str, Any]:
    """Return a container whose mounts have the volumes' new names."""
    renamed_container = dict(container)
    for key in ("volumeMounts", "volumeDevices"):
        if isinstance(renamed_container.get(key), list):
            renamed_container[key] = [
                {**mount, "name": role.renamed[mount["name"]]}
                if isinstance(mount, dict) and str(mount.get("name")) in role.renamed
                else mount
                for mount in renamed_container[key]
            ]
    return renamed_container


def read_mounts(role: RoleBuilder, path: Path) -> None:
    """Carry over the mounts of the task's container."""
    for index in range(len(role.reader.items(path))):
        below = (*path, index)
        mount = dict(role.reader.mapping(below))
        name, given_path = role.reader.string((*below, "name")), role.reader.string((*below, "mountPath"))
        if name is None or given_path is None:
            expected = "name and mountPath"
            role.reader.add_problem(below, "a mount lacks its name or its mountPath", expected, "add what is missing")
            continue
        normalized = posixpath.normpath(given_path)
        if normalized == _TRAINER_PARENT_DIRECTORY:
            message = f"{normalized} is reserved for the parent of the task's program"
            role.reader.add_problem((*below, "mountPath"), message, f"a path other than {_TRAINER_PARENT_DIRECTORY}", "mount it elsewhere")
        mount_path = normalized if normalized in _PATHS_OF_THE_LAUNCHER else given_path
        role.mounts.append({**mount, "name": role.renamed.get(name, name), "mountPath": mount_path})


def move_to_spec(builder: SpecBuilder) -> None:
    """Move volumes that the spec's `volumes` can have there, from the roles' overrides."""
    volumes: list[dict[str, Any]] = []
    mount_paths: set[str] = set()
    for name in dict.fromkeys(volume["name"] for role in builder.roles for volume in role.volumes):
        items = {role.name: _as_item(role, name) for role in builder.roles if any(volume["name"] == name for volume in role.volumes)}
        item = _common_item(list(items.values()))
        mount_path = posixpath.normpath(item["mount_path"]) if item and "mount_path" in item else None
        if item is None or mount_path in mount_paths:
            continue
        if mount_path is not None:
            mount_paths.add(mount_path)
            mounting_roles = [role for role, volume in items.items() if volume and "mount_path" in volume]
            item |= {"roles": mounting_roles} if len(mounting_roles) < len(builder.roles) else {}
        volumes.append(item)
        for role in builder.roles:
            role.volumes = [volume for volume in role.volumes if volume["name"] != name]
            role.mounts = [mount for mount in role.mounts if mount["name"] != name]
            for container in role.extra_containers:
                mounts = [mount for mount in container.mounts if _is_mount_of(mount, name)]
                container.mounts = [mount for mount in container.mounts if mount not in mounts]
                if mounts:
                    container.fields.setdefault("mounts", []).extend(map(to_mount, mounts))
    if volumes:
        builder.set(("volumes",), volumes, builder.roles[0].path)


def _common_item(items: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Return the volume if all roles mean the same one by its name; a role whose task does not mount it has no mount path."""
    known = [item for item in items if item is not None]
    mounted = [item for item in known if "mount_path" in item]
    agree = all(item == mounted[0] for item in mounted) and all(item["source"] == known[0]["source"] for item in known)
    return dict((mounted or known)[0]) if len(known) == len(items) and agree else None


def _is_mount_of(mount: Any, name: str) -> bool:
    return isinstance(mount, dict) and mount.get("name") == name


def to_mount(mount: Any) -> dict[str, Any] | None:
    """Return a mount of an init container or sidecar as an item of `mounts`; None if that cannot have it."""
    if not isinstance(mount, dict) or set(mount) - set(_MOUNT_KEYS):
        return None
    item = {_MOUNT_KEYS[key]: value for key, value in mount.items() if value not in (None, "")}
    item["read_only"] = mount.get("readOnly") or False
    return as_valid(Mount, item)


def _as_item(role: RoleBuilder, name: str) -> dict[str, Any] | None:
    """Return a volume as an item of `volumes`, or None if that cannot have it, or no container of the role mounts it."""
    [volume, *more] = [volume for volume in role.volumes if volume["name"] == name]
    mounts = [mount for mount in role.mounts if mount["name"] == name]
    extra_mounts = [to_mount(mount) for container in role.extra_containers for mount in container.mounts if _is_mount_of(mount, name)]
    if more or len(mounts) > 1 or not (mounts or extra_mounts) or None in extra_mounts:
        return None
    source = {key: value for key, value in volume.items() if key != "name" and value is not None}
    item: dict[str, Any] = {"name": name, "source": source}
    if mounts:
        [mount] = mounts
        if set(mount) - {"name", "mountPath", "readOnly", "subPath"}:
            return None
        item |= {"mount_path": mount["mountPath"], "read_only": mount.get("readOnly") or False}
        item |= {"sub_path": mount["subPath"]} if mount.get("subPath") else {}
    return as_valid(Volume, item)
