"""Init containers, and sidecars, which Kubernetes ends with the task. Pure."""

from collections.abc import Mapping

from launcher.errors import UsageError
from launcher.plan.task_groups import TaskGroup
from launcher.render.kubernetes.objects import RESTRICTED_SECURITY_CONTEXT, Object, Run, env, literal, resources
from launcher.spec import role_programs
from launcher.spec.containers import Container, Mount
from launcher.spec.kubernetes import Volume
from launcher.spec.names import RUN_VOLUME, TMP
from launcher.spec.role_programs import init_containers_of, roles_of, sidecars_of, volumes_of


def init_containers(run: Run, group: TaskGroup) -> Object:
    """Return the pod's field `initContainers` with the init containers, then the sidecars; no field if there are none.

    A sidecar is an init container for which Kubernetes does not wait, and which it restarts until the task has ended.
    https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
    """
    role = roles_of(run.spec)[group.role]
    containers = [_container(run, group, container) for container in init_containers_of(run.spec, role)]
    containers += [_container(run, group, container) | {"restartPolicy": "Always"} for container in sidecars_of(run.spec, role)]
    return {"initContainers": containers} if containers else {}


def mounted(run: Run, role_name: str) -> set[str]:
    """Return the names of the volumes that a role's init containers and sidecars mount."""
    return {
        mount.volume
        for container in role_programs.extra_containers_of(run.spec, roles_of(run.spec)[role_name])
        for mount in container.mounts
    }


def _container(run: Run, group: TaskGroup, container: Container) -> Object:
    is_hardened = group.first_task.is_hardened
    home = {"HOME": TMP} if is_hardened else {}
    fields: Object = {
        "name": container.name,
        "image": container.image or group.first_task.image or run.image,
        "imagePullPolicy": run.options.image_pull_policy,
        "command": [literal(word) for word in container.command or ()],
        "args": [literal(word) for word in container.args],
        "workingDir": container.working_dir,
        "env": env({**home, **container.env}),
        "resources": resources(run, container.cpu, container.memory) or None,
        "securityContext": {"allowPrivilegeEscalation": False, **(RESTRICTED_SECURITY_CONTEXT if is_hardened else {})},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(run, group, container),
    }
    return {key: value for key, value in fields.items() if value not in (None, [])}


def _mounts(run: Run, group: TaskGroup, container: Container) -> list[Object]:
    volumes = {volume.name: volume for volume in volumes_of(run.spec)}
    # Each has its own /tmp, as the task has: no other directory is writable.
    own: list[Object] = [{"name": "tmp", "mountPath": TMP, "subPath": container.name}] if group.first_task.is_hardened else []
    return own + [_mount(group, container, mount, volumes) for mount in container.mounts]


def _mount(group: TaskGroup, container: Container, mount: Mount, volumes: Mapping[str, Volume]) -> Object:
    if mount.volume == RUN_VOLUME:
        if not group.mounts_run_dir:
            raise UsageError(
                f"the container {container.name} mounts the run's volume, which tasks of role {group.role} do not mount",
                "move the container to a role that mounts it, e.g. to roles.chief.sidecars",
            )
        read_only = mount.read_only or False
    else:
        read_only = volumes[mount.volume].is_mounted_read_only(mount.read_only)
    mount_fields: Object = {"name": mount.volume, "mountPath": mount.mount_path}
    return mount_fields | ({"subPath": mount.sub_path} if mount.sub_path else {}) | ({"readOnly": True} if read_only else {})
