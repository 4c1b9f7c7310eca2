"""The additions to a task in a Compose file: its further volumes, and a service for each init container and sidecar. Pure."""

from pathlib import Path, PurePosixPath
from typing import Any

from launcher.images import image_of
from launcher.plan.container_paths import CONTAINER_RUNS
from launcher.plan.models import Plan, Task
from launcher.render import labels
from launcher.render.compose_values import amounts, bind, bound, escaped, image
from launcher.render.targets import Source
from launcher.render.yaml_text import MERGE
from launcher.spec.container_rules import is_in_compose
from launcher.spec.containers import Container, Mount
from launcher.spec.kubernetes import Volume
from launcher.spec.names import RUN_VOLUME, TMP
from launcher.spec.quantities import parse_memory
from launcher.spec.role_programs import extra_containers_of, init_containers_of, roles_of, sidecars_of

INIT = "init"  # the network of init containers: they may fetch something, and reach no task
PREPARE = "prepare-volume"


def scratch(source: Source) -> list[str]:
    """Return the volumes that begin empty for each task, by the names that they have in the file."""
    used = (one for task in source.plan.tasks for one in (*of_task(source, task), *_container_mounts(source, task)))
    return list(dict.fromkeys(str(one["source"]) for one in used if one["type"] == "volume" and one["source"] != RUN_VOLUME))


def prepares_run_volume(plan: Plan) -> bool:
    """Return whether the run's volume may first be mounted to an image that does not give it to the user that tasks run as."""
    return any(task.image for task in plan.tasks if task.mounts_run_dir)


def has_prepare(source: Source) -> bool:
    """Return whether the file has the service that gives new volumes to the user that tasks run as."""
    return bool(scratch(source)) or prepares_run_volume(source.plan)


def of_task(source: Source, task: Task) -> list[dict[str, Any]]:
    """Return the spec's further volumes as a task mounts them."""
    found = [
        _mount(source, task, volume, volume.mount_path, volume.sub_path, read_only=volume.is_mounted_read_only(volume.read_only))
        for volume in source.spec.volumes
        if volume.mount_path is not None and (not volume.roles or task.role in volume.roles)
    ]
    return [mount for mount in found if mount is not None]


def after(source: Source, task: Task) -> dict[str, Any]:
    """Return what a task waits for: its last init container, if it has one."""
    before = init_containers_of(source.spec, roles_of(source.spec)[task.role])
    return completed(f"{task.name}-{before[-1].name}") if before else {}


def completed(service: str) -> dict[str, Any]:
    """Return that a service is started when another one has ended with exit code 0."""
    return {service: {"condition": "service_completed_successfully"}}


def services(source: Source, task: Task, base: dict[str, Any], common: dict[str, str]) -> dict[str, Any]:
    """Return the services beside a task, whose container starts from `base`: init containers one after the other, then its sidecars."""
    role = roles_of(source.spec)[task.role]
    made: dict[str, Any] = {}
    prepared = completed(PREPARE) if has_prepare(source) else {}
    waits_for = prepared
    for one in init_containers_of(source.spec, role):
        name = f"{task.name}-{one.name}"
        own = {"restart": "no", "networks": [INIT], **({"depends_on": waits_for} if waits_for else {})}
        made[name] = _service(source, task, one, base) | {"labels": {MERGE: common, labels.SERVICE: name}} | own
        waits_for = completed(name)
    for one in sidecars_of(source.spec, role):
        name = f"{task.name}-{one.name}"
        marks = {MERGE: common, labels.SERVICE: name, labels.SIDECAR_OF: task.name}
        own = {
            "restart": "unless-stopped",
            "network_mode": f"service:{task.name}",
            "depends_on": {task.name: {"condition": "service_started"}, **prepared},
        }
        made[name] = _service(source, task, one, base) | {"labels": marks} | own
    return made


def _service(source: Source, task: Task, one: Container, base: dict[str, Any]) -> dict[str, Any]:
    home = {"HOME": TMP} if task.is_hardened else {}
    words = [escaped(word) for word in (*(one.command or ()), *one.args)]
    environment = home | {name: escaped(value) if isinstance(value, str) else None for name, value in one.env.items()}
    memory = None if one.memory is None else parse_memory(one.memory)
    volumes = _mounts(source, task, one)
    return {
        MERGE: base,
        "image": image(one.image or image_of(task, source.spec)),
        **({"entrypoint": []} if one.command else {}),
        **({"command": words} if words else {}),
        **({"working_dir": escaped(one.working_dir)} if one.working_dir else {}),
        **({"environment": environment} if environment else {}),
        **amounts(one.cpu, memory),
        **({"volumes": volumes} if volumes else {}),
    }


def _container_mounts(source: Source, task: Task) -> list[dict[str, Any]]:
    return [mount for one in extra_containers_of(source.spec, roles_of(source.spec)[task.role]) for mount in _mounts(source, task, one)]


def _mounts(source: Source, task: Task, one: Container) -> list[dict[str, Any]]:
    volumes = {volume.name: volume for volume in source.spec.volumes if is_in_compose(volume)}
    found: list[dict[str, Any] | None] = []
    for mount in one.mounts:
        if mount.volume == RUN_VOLUME:
            found.append(_of_run(mount) if task.mounts_run_dir else None)
        elif mount.volume in volumes:
            volume = volumes[mount.volume]
            read_only = volume.is_mounted_read_only(mount.read_only)
            found.append(_mount(source, task, volume, mount.mount_path, mount.sub_path, read_only=read_only))
    return [mount for mount in found if mount is not None]


def _of_run(mount: Mount) -> dict[str, Any]:
    mode = {"read_only": True} if mount.read_only else {}
    part = {"volume": {"subpath": escaped(mount.sub_path)}} if mount.sub_path else {}
    return {"type": "volume", "source": RUN_VOLUME, "target": escaped(mount.mount_path or CONTAINER_RUNS), **mode, **part}


def _mount(source: Source, task: Task, volume: Volume, target: str, sub_path: str | None, *, read_only: bool) -> dict[str, Any] | None:
    """Return a volume as a service mounts it; None for one that Compose cannot have."""
    if volume.path is not None:
        return bind(str(Path(volume.path, sub_path or "")), target, source.directory, read_only=read_only)
    if not is_in_compose(volume):
        return None
    if volume.is_scratch:
        mode = {"read_only": True} if read_only else {}
        return {"type": "volume", "source": f"{volume.name}-{task.name}", "target": escaped(target), **mode}
    host = str(((volume.source or {}).get("hostPath") or {}).get("path"))
    return bound(str(PurePosixPath(host, sub_path or "")), target, read_only=read_only)
