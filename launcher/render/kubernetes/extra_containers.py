"""The containers beside a role's task: init containers, and sidecars, which Kubernetes ends with the task. Pure."""

from collections.abc import Mapping

from launcher.errors import UsageError
from launcher.plan.role_groups import RoleGroup
from launcher.render.kubernetes.objects import RESTRICTED_SECURITY_CONTEXT, Object, Run, env, literal, resources
from launcher.spec import role_programs
from launcher.spec.containers import Container, Mount
from launcher.spec.kubernetes import Volume
from launcher.spec.names import RUN_VOLUME, TMP
from launcher.spec.role_programs import init_containers_of, roles_of, sidecars_of, volumes_of


def init_containers(run: Run, group: RoleGroup) -> Object:
    """Return the pod's field with the init containers, then the sidecars; no field where there are none.

    A sidecar is an init container that is not waited for and restarted whenever it ends, until the task has ended.
    https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
    """
    role = roles_of(run.spec)[group.role]
    made = [_container(run, group, one) for one in init_containers_of(run.spec, role)]
    made += [_container(run, group, one) | {"restartPolicy": "Always"} for one in sidecars_of(run.spec, role)]
    return {"initContainers": made} if made else {}


def mounted(run: Run, role_name: str) -> set[str]:
    """Return the names of the volumes that containers beside the tasks of a role mount."""
    return {mount.volume for one in role_programs.extra_containers_of(run.spec, roles_of(run.spec)[role_name]) for mount in one.mounts}


def _container(run: Run, group: RoleGroup, one: Container) -> Object:
    is_hardened = group.task.is_hardened
    home = {"HOME": TMP} if is_hardened and "HOME" not in one.env else {}
    made: Object = {
        "name": one.name,
        "image": one.image or group.task.image or run.image,
        "imagePullPolicy": run.options.image_pull_policy,
        "command": [literal(word) for word in one.command or ()],
        "args": [literal(word) for word in one.args],
        "workingDir": one.working_dir,
        "env": env({**home, **one.env}),
        "resources": resources(run, one.cpu, one.memory) or None,
        "securityContext": {"allowPrivilegeEscalation": False, **(RESTRICTED_SECURITY_CONTEXT if is_hardened else {})},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(run, group, one),
    }
    return {key: value for key, value in made.items() if value not in (None, [])}


def _mounts(run: Run, group: RoleGroup, one: Container) -> list[Object]:
    volumes = {volume.name: volume for volume in volumes_of(run.spec)}
    # Each has a /tmp of its own, as the task has: nothing else can be written.
    own: list[Object] = [{"name": "tmp", "mountPath": TMP, "subPath": one.name}] if group.task.is_hardened else []
    return own + [_mount(group, one, mount, volumes) for mount in one.mounts]


def _mount(group: RoleGroup, one: Container, mount: Mount, volumes: Mapping[str, Volume]) -> Object:
    if mount.volume == RUN_VOLUME:
        if not group.mounts_run_dir:
            raise UsageError(
                f"the container {one.name} mounts the run's volume, which the {group.role}'s tasks do not have",
                "give the container to the roles that have it, such as roles.chief.sidecars",
            )
        read_only = mount.read_only or False
    else:
        read_only = volumes[mount.volume].is_mounted_read_only(mount.read_only)
    made: Object = {"name": mount.volume, "mountPath": mount.mount_path}
    return made | ({"subPath": mount.sub_path} if mount.sub_path else {}) | ({"readOnly": True} if read_only else {})
