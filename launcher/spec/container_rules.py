"""The rules of init containers, sidecars and volumes, and which volumes Compose can mount."""

from collections.abc import Iterable, Iterator

from launcher.errors import nearest
from launcher.spec import names
from launcher.spec.containers import FromSecret
from launcher.spec.kubernetes import Volume
from launcher.spec.problems import FieldError, Finding, Path, any_of, shown
from launcher.spec.role_programs import containers_of, volumes_of
from launcher.spec.rule_context import RuleContext


def _volumes_with_paths(context: RuleContext) -> Iterator[tuple[Path, Volume]]:
    yield from ((("volumes", index), volume) for index, volume in enumerate(context.spec.volumes))
    yield from ((("kubernetes", "volumes", index), volume) for index, volume in enumerate(context.spec.kubernetes.volumes))


def volumes_are_unique(context: RuleContext) -> Iterator[Finding]:
    """No two volumes have the same name or mount path."""
    seen: dict[tuple[str, str], Path] = {}
    for path, volume in _volumes_with_paths(context):
        mount_path = names.normalized_path(volume.mount_path) if volume.mount_path else None
        for field, value in (("name", volume.name), ("mount_path", mount_path)):
            if value is not None and seen.setdefault((field, value), path) != path:
                message = f"`{value}` is the {field} of two volumes"
                yield Finding((*path, field), message, "one of its own for each", "change one of them")


def kubernetes_volumes_have_source(context: RuleContext) -> Iterator[Finding]:
    """A volume of the `kubernetes` section has a `source` and no `path`."""
    for index, volume in enumerate(context.spec.kubernetes.volumes):
        if volume.path is not None or volume.source is None:
            message = "`path` is a directory for Compose, and these volumes are for Kubernetes only"
            yield Finding(("kubernetes", "volumes", index), message, "`source`", "move the volume to `volumes` at the top of the spec")


def container_names_are_unique(context: RuleContext) -> Iterator[Finding]:
    """No two containers of a task have the same name, except that a role's may replace the spec's of the same kind."""
    seen: dict[tuple[Path, str], Path] = {}  # the list it is in, and its name
    for path, container in containers_of(context.spec):
        kind, section = path[-2], path[:-2]
        other = "sidecars" if kind == "init_containers" else "init_containers"
        parents = [(*section, kind), (*section, other), (other,)]
        if any((parent, container.name) in seen for parent in parents):
            message = f"two containers of a task are called {shown(container.name)}"
            yield Finding((*path, "name"), message, "a name of its own for each", "rename one of them")
        seen[path[:-1], container.name] = path


def containers_are_usable(context: RuleContext) -> Iterator[Finding]:
    """An init container or sidecar has a program, usable variables, and mounts of existing volumes."""
    volume_names = [*(volume.name for volume in volumes_of(context.spec)), names.RUN_VOLUME]
    for path, container in containers_of(context.spec):
        if container.image is None and container.command is None:
            message = f"the container {container.name} has nothing to run: neither a `command` nor an `image`"
            yield Finding(
                path, message, "a `command`, or an `image` whose entrypoint runs", "add a `command`, such as [sh, -c, ...]", on="key"
            )
        for index, mount in enumerate(container.mounts):
            if mount.volume not in volume_names:
                meant = nearest(mount.volume, volume_names)
                remedy = f"write {meant}" if meant else "add it to `volumes`"
                yield Finding((*path, "mounts", index, "volume"), f"there is no volume {shown(mount.volume)}", any_of(volume_names), remedy)
        for variable, value in container.env.items():
            try:
                names.check_variable_name(variable)
                if isinstance(value, FromSecret):
                    names.check_can_be_secret(variable)
            except FieldError as error:
                yield Finding((*path, "env", variable), error.message, error.expected, error.remedy, on="key")


def mount_paths_are_unique(context: RuleContext) -> Iterator[Finding]:
    """No two mounts of a container have the same path, and none has a reserved path."""
    is_hardened = context.spec.security == "hardened"
    reserved = ("/", *([names.TMP] if is_hardened else []))
    for path, container in containers_of(context.spec):
        seen: set[str] = set()
        for index, mount in enumerate(container.mounts):
            mount_path = names.normalized_path(mount.mount_path)
            mount_location = (*path, "mounts", index, "mount_path")
            if mount_path in reserved:
                message = f"`{mount_path}` is a reserved path of the container {container.name}"
                yield Finding(mount_location, message, f"a path other than {any_of(reserved)}", "write a path such as /data")
            elif mount_path in seen:
                message = f"`{mount_path}` is the mount_path of two mounts of the container {container.name}"
                yield Finding(mount_location, message, "one of its own for each", "change one of them")
            seen.add(mount_path)


def volumes_are_mounted(context: RuleContext) -> Iterator[Finding]:
    """Every volume is mounted: by tasks, by an init container or sidecar, or perhaps by `kubernetes.overrides`."""
    used = {mount.volume for _, container in containers_of(context.spec) for mount in container.mounts}
    if any(context.spec.kubernetes.overrides.model_dump().values()):
        return
    for path, volume in _volumes_with_paths(context):
        if volume.mount_path is None and volume.name not in used:
            message = f"nothing mounts the volume {volume.name}"
            expected = "`mount_path`, its path in the tasks, or one of the `mounts` of an init container or sidecar"
            yield Finding(path, message, expected, f"add a mount_path such as /{volume.name}, or remove the volume")


def is_in_compose(volume: Volume) -> bool:
    """Return whether Compose can mount a volume: a directory, or an `emptyDir`."""
    if volume.is_empty_dir and volume.sub_path:
        return False  # engines before 26 cannot mount a part of a volume
    return volume.path is not None or volume.is_empty_dir or (volume.source is not None and "hostPath" in volume.source)


def is_mounted(volumes: Iterable[Volume], path: str) -> bool:
    """Return whether tasks mount one of these volumes at a path or above it; then the path need not exist on this machine."""
    normalized = names.normalized_path(path)
    mount_paths = (names.normalized_path(volume.mount_path) for volume in volumes if volume.mount_path)
    return any(f"{normalized}/".startswith(f"{mount_path}/") for mount_path in mount_paths)
