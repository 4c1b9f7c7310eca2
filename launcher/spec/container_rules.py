"""The rules of init containers, sidecars and volumes, and which volumes Compose can have."""

import posixpath
from collections.abc import Iterable, Iterator

from launcher.spec import names
from launcher.spec.containers import FromSecret
from launcher.spec.kubernetes import Volume
from launcher.spec.problems import FieldError, Finding, Path, any_of, nearest, shown
from launcher.spec.role_programs import containers_of, volumes_of
from launcher.spec.rule_context import RuleContext


def _listed(subject: RuleContext) -> Iterator[tuple[Path, Volume]]:
    yield from ((("volumes", index), volume) for index, volume in enumerate(subject.spec.volumes))
    yield from ((("kubernetes", "volumes", index), volume) for index, volume in enumerate(subject.spec.kubernetes.volumes))


def volumes_apart(subject: RuleContext) -> Iterator[Finding]:
    """No two volumes have the same name or mount path."""
    seen: dict[tuple[str, str], Path] = {}
    for path, volume in _listed(subject):
        mount_path = _plain(volume.mount_path) if volume.mount_path else None
        for field, value in (("name", volume.name), ("mount_path", mount_path)):
            if value is not None and seen.setdefault((field, value), path) != path:
                message = f"`{value}` is the {field} of two volumes"
                yield Finding((*path, field), message, "one of its own for each", "change one of them")


def volumes_of_kubernetes(subject: RuleContext) -> Iterator[Finding]:
    """The source of a volume without a `path` is one that Kubernetes knows."""
    for index, volume in enumerate(subject.spec.kubernetes.volumes):
        if volume.path is not None or volume.source is None:
            message = "`path` is a directory for Compose, and these volumes are for Kubernetes alone"
            yield Finding(("kubernetes", "volumes", index), message, "`source`", "move the volume to `volumes` at the top of the spec")


def containers_apart(subject: RuleContext) -> Iterator[Finding]:
    """No two containers of a task have one name; a role's may stand in place of the spec's of the same kind."""
    seen: dict[tuple[Path, str], Path] = {}  # where it stands, and its name
    for path, one in containers_of(subject.spec):
        kind, section = path[-2], path[:-2]
        other = "sidecars" if kind == "init_containers" else "init_containers"
        taken = [(*section, kind), (*section, other), (other,)]
        if any((parent, one.name) in seen for parent in taken):
            message = f"two containers of a task are called {shown(one.name)}"
            yield Finding((*path, "name"), message, "a name of its own for each", "rename one of them")
        seen[path[:-1], one.name] = path


def containers_run_something(subject: RuleContext) -> Iterator[Finding]:
    """A container beside a task says what it runs, from usable variables and volumes that are there."""
    there = [*(volume.name for volume in volumes_of(subject.spec)), names.RUN_VOLUME]
    for path, one in containers_of(subject.spec):
        if one.image is None and one.command is None:
            message = f"the container {one.name} has nothing to run: neither a `command` nor an `image`"
            yield Finding(
                path, message, "a `command`, or an `image` whose entrypoint runs", "add a `command`, such as [sh, -c, ...]", on="key"
            )
        for index, mount in enumerate(one.mounts):
            if mount.volume not in there:
                meant = nearest(mount.volume, there)
                remedy = f"write {meant}" if meant else "add it to `volumes`"
                yield Finding((*path, "mounts", index, "volume"), f"there is no volume {shown(mount.volume)}", any_of(there), remedy)
        for variable, value in one.env.items():
            try:
                names.check_name_of_variable(variable)
                if isinstance(value, FromSecret):
                    names.check_secret(variable)
            except FieldError as wrong:
                yield Finding((*path, "env", variable), wrong.message, wrong.expected, wrong.remedy, on="key")


def mounts_apart(subject: RuleContext) -> Iterator[Finding]:
    """No two mounts of a container have the same path, or a path where every container has something of its own."""
    is_hardened = subject.spec.security == "hardened"
    taken = ("/", *([names.TMP] if is_hardened else []))
    for path, one in containers_of(subject.spec):
        seen: set[str] = set()
        for index, mount in enumerate(one.mounts):
            mount_path = _plain(mount.mount_path)
            at = (*path, "mounts", index, "mount_path")
            if mount_path in taken:
                message = f"`{mount_path}` is where the container {one.name} has something of its own"
                yield Finding(at, message, f"a path other than {any_of(taken)}", "write a path such as /data")
            elif mount_path in seen:
                message = f"`{mount_path}` is the mount_path of two mounts of the container {one.name}"
                yield Finding(at, message, "one of its own for each", "change one of them")
            seen.add(mount_path)


def volumes_are_mounted(subject: RuleContext) -> Iterator[Finding]:
    """A volume is mounted somewhere: by tasks, by a container beside them, or by a pod template's override."""
    used = {mount.volume for _, one in containers_of(subject.spec) for mount in one.mounts}
    if any(subject.spec.kubernetes.overrides.model_dump().values()):
        return
    for path, volume in _listed(subject):
        if volume.mount_path is None and volume.name not in used:
            message = f"nothing mounts the volume {volume.name}"
            expected = "`mount_path`, where the tasks find it, or one of the `mounts` of an init container or sidecar"
            yield Finding(path, message, expected, f"add a mount_path such as /{volume.name}, or remove the volume")


def _plain(path: str) -> str:
    """Return an absolute path as it is written without `.`, `..` and repeated slashes."""
    return f"/{posixpath.normpath(path).strip('/')}"


def is_in_compose(volume: Volume) -> bool:
    """Return whether Compose can have a volume: a directory, or what begins empty."""
    if volume.is_scratch and volume.sub_path:
        return False  # engines before 26 cannot mount a part of a volume
    return volume.path is not None or volume.is_scratch or (volume.source is not None and "hostPath" in volume.source)


def is_mounted(volumes: Iterable[Volume], path: str) -> bool:
    """Return whether a path is on one of these volumes, where tasks mount it; this machine then need not have it."""
    plain = _plain(path)
    mount_paths = (_plain(volume.mount_path) for volume in volumes if volume.mount_path)
    return any(f"{plain}/".startswith(f"{mount_path}/") for mount_path in mount_paths)
