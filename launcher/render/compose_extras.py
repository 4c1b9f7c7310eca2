"""Additions to a task in a Compose file: its additional volumes, and a service for each init container and sidecar. Pure."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from launcher.images import task_image
from launcher.plan.container_paths import CONTAINER_RUNS
from launcher.plan.models import Task
from launcher.render import labels
from launcher.render.compose_values import bind_mount, bind_relative, escaped, image, resource_limits
from launcher.render.targets import RenderSource
from launcher.render.yaml_text import MERGE
from launcher.spec.container_rules import is_in_compose
from launcher.spec.containers import Container, Mount
from launcher.spec.kubernetes import Volume
from launcher.spec.names import RUN_VOLUME, TMP
from launcher.spec.quantities import parse_memory
from launcher.spec.role_programs import extra_containers_of, init_containers_of, roles_of, sidecars_of

INIT = "init"  # the network of init containers: they can download files, but cannot reach tasks
PREPARE = "prepare-volume"
SIDECAR_RESTART = "unless-stopped"  # as Kubernetes restarts it, but also after its task has ended: `launcher up` and `down` end it


def prepared_volumes(source: RenderSource) -> dict[str, str]:
    """Return the volumes that the service PREPARE makes writable for the tasks' user, each with its path there; empty without that service.

    These are the volumes that begin empty for each task, and that of the run if its first mount may be in an image that does not do it.
    """
    used = (mount for task in source.plan.tasks for mount in (*volume_mounts(source, task), *_container_mounts(source, task)))
    scratch = [str(mount["source"]) for mount in used if mount["type"] == "volume" and mount["source"] != RUN_VOLUME]
    run_volume = {RUN_VOLUME: CONTAINER_RUNS} if any(task.image for task in source.plan.tasks if task.mounts_run_dir) else {}
    return run_volume | {name: f"/scratch/{name}" for name in scratch}


def volume_mounts(source: RenderSource, task: Task) -> list[dict[str, Any]]:
    """Return a task's mounts of the spec's additional volumes."""
    mounts = [
        _mount(source, task, volume, volume.mount_path, volume.sub_path, read_only=volume.is_mounted_read_only(volume.read_only))
        for volume in source.spec.volumes
        if volume.mount_path is not None and (not volume.roles or task.role in volume.roles)
    ]
    return [mount for mount in mounts if mount is not None]


def depends_on(source: RenderSource, task: Task) -> dict[str, Any]:
    """Return a task's `depends_on`: its last init container, if it has one."""
    containers = init_containers_of(source.spec, roles_of(source.spec)[task.role])
    return on_success(f"{task.name}-{containers[-1].name}") if containers else {}


def on_success(service: str) -> dict[str, Any]:
    """Return the `depends_on` of a service that starts when another one has exited with 0."""
    return {service: {"condition": "service_completed_successfully"}}


def services(source: RenderSource, task: Task, base: dict[str, Any], common: dict[str, str], prepared: Mapping[str, str]) -> dict[str, Any]:
    """Return the services of a task's init containers, each of which waits for the one before, and of its sidecars. They extend `base`."""
    role = roles_of(source.spec)[task.role]
    extra: dict[str, Any] = {}
    after_prepare = on_success(PREPARE) if prepared else {}
    waits_for = after_prepare
    for container in init_containers_of(source.spec, role):
        name = f"{task.name}-{container.name}"
        own = {"restart": "no", "networks": [INIT], **({"depends_on": waits_for} if waits_for else {})}
        extra[name] = _service(source, task, container, base) | {"labels": {MERGE: common, labels.SERVICE: name}} | own
        waits_for = on_success(name)
    for container in sidecars_of(source.spec, role):
        name = f"{task.name}-{container.name}"
        label_map = {MERGE: common, labels.SERVICE: name, labels.SIDECAR_OF: task.name}
        own = {
            "restart": SIDECAR_RESTART,
            "network_mode": f"service:{task.name}",
            "depends_on": {task.name: {"condition": "service_started"}, **after_prepare},
        }
        extra[name] = _service(source, task, container, base) | {"labels": label_map} | own
    return extra


def _service(source: RenderSource, task: Task, container: Container, base: dict[str, Any]) -> dict[str, Any]:
    home = {"HOME": TMP} if task.is_hardened else {}
    arguments = [escaped(word) for word in (*(container.command or ()), *container.args)]
    environment = home | {name: escaped(value) if isinstance(value, str) else None for name, value in container.env.items()}
    memory = None if container.memory is None else parse_memory(container.memory)
    volumes = _mounts(source, task, container)
    return {
        MERGE: base,
        "image": image(container.image or task_image(task, source.spec)),
        **({"entrypoint": []} if container.command else {}),
        **({"command": arguments} if arguments else {}),
        **({"working_dir": escaped(container.working_dir)} if container.working_dir else {}),
        **({"environment": environment} if environment else {}),
        **resource_limits(container.cpu, memory),
        **({"volumes": volumes} if volumes else {}),
    }


def _container_mounts(source: RenderSource, task: Task) -> list[dict[str, Any]]:
    return [
        mount
        for container in extra_containers_of(source.spec, roles_of(source.spec)[task.role])
        for mount in _mounts(source, task, container)
    ]


def _mounts(source: RenderSource, task: Task, container: Container) -> list[dict[str, Any]]:
    volumes = {volume.name: volume for volume in source.spec.volumes if is_in_compose(volume)}
    mounts: list[dict[str, Any] | None] = []
    for mount in container.mounts:
        if mount.volume == RUN_VOLUME:
            mounts.append(_run_volume_mount(mount) if task.mounts_run_dir else None)
        elif mount.volume in volumes:
            volume = volumes[mount.volume]
            read_only = volume.is_mounted_read_only(mount.read_only)
            mounts.append(_mount(source, task, volume, mount.mount_path, mount.sub_path, read_only=read_only))
    return [mount for mount in mounts if mount is not None]


def _run_volume_mount(mount: Mount) -> dict[str, Any]:
    mode = {"read_only": True} if mount.read_only else {}
    part = {"volume": {"subpath": escaped(mount.sub_path)}} if mount.sub_path else {}
    return {"type": "volume", "source": RUN_VOLUME, "target": escaped(mount.mount_path or CONTAINER_RUNS), **mode, **part}


def _mount(
    source: RenderSource, task: Task, volume: Volume, target: str, sub_path: str | None, *, read_only: bool
) -> dict[str, Any] | None:
    """Return a service's mount of a volume; None for a volume that Compose cannot mount."""
    if volume.path is not None:
        return bind_relative(str(Path(volume.path, sub_path or "")), target, source.directory, read_only=read_only)
    if not is_in_compose(volume):
        return None
    if volume.is_empty_dir:
        mode = {"read_only": True} if read_only else {}
        return {"type": "volume", "source": f"{volume.name}-{task.name}", "target": escaped(target), **mode}
    host = str(((volume.source or {}).get("hostPath") or {}).get("path"))
    return bind_mount(str(PurePosixPath(host, sub_path or "")), target, read_only=read_only)
