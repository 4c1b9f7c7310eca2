"""The fields of a spec that a target does not support: each gets a notice, so that nothing is left out silently. Pure.

launcher/plan/target_rules.py has the functions of each target.
"""

from launcher.plan import role_rules
from launcher.plan.models import RoleName
from launcher.spec.container_rules import is_in_compose
from launcher.spec.models import ClusterSpec
from launcher.spec.names import RUN_VOLUME
from launcher.spec.role_programs import containers_of, extra_containers_of, roles_of, storage_of


def env_file(spec: ClusterSpec) -> list[str]:
    """Return the notice that a cluster reads no `env_file`."""
    return ["env_file is not read: the cluster's own Secrets have the values"] if spec.env_file else []


def tensorboard_host(spec: ClusterSpec) -> list[str]:
    """Return the notice that TensorBoard listens on no address of a cluster's nodes."""
    if not spec.tensorboard or "host" not in spec.tensorboard.model_fields_set:
        return []
    return ["tensorboard.host left out: TensorBoard is on a Service; `kubectl port-forward` makes it reachable from outside"]


def extra_containers(spec: ClusterSpec) -> list[str]:
    """Return notices about init containers and sidecars, which processes do not have."""
    containers = containers_of(spec)
    notices = []
    for kind, noun in (("init_containers", "init containers"), ("sidecars", "sidecars")):
        if names := dict.fromkeys(container.name for path, container in containers if path[-2] == kind):
            notices.append(f"{noun} left out: {', '.join(names)}; tasks are processes, without containers beside them")
    return notices


def volumes(spec: ClusterSpec) -> list[str]:
    """Return the notice about volumes, which processes do not have."""
    names = ", ".join(volume.name for volume in spec.volumes)
    return [f"volumes left out: {names}; tasks see this machine's own directories"] if names else []


def volumes_of_kubernetes(spec: ClusterSpec) -> list[str]:
    """Return the notice about volumes that only a cluster has."""
    names = ", ".join(volume.name for volume in spec.volumes if not is_in_compose(volume))
    return [f"volumes left out: {names}; a `path` beside `source` names a directory to use instead"] if names else []


def run_volume(spec: ClusterSpec) -> list[str]:
    """Return the notice about extra containers whose mount of the run's volume is left out, because their task does not mount it."""
    all_roles = roles_of(spec)
    without = _roles_without_run_volume(spec)
    mounting = dict.fromkeys(
        f"{container.name} ({role})"
        for role in without
        for container in extra_containers_of(spec, all_roles[role])
        for mount in container.mounts
        if mount.volume == RUN_VOLUME
    )
    if not mounting:
        return []
    return [f"mounts of the run's volume left out: {', '.join(mounting)}; only containers beside tasks with this volume can mount it"]


def _roles_without_run_volume(spec: ClusterSpec) -> list[RoleName]:
    """Return the roles with a task that lacks the run's volume in Compose. All tasks of a program have it, if the run has one."""
    all_roles = roles_of(spec)
    roles = [role for role in role_rules.ROLE_ORDER if role in all_roles]
    if storage_of(spec) is None:
        return roles
    if spec.train is None:
        return []
    tasks = [(role, role_rules.task_name(role, index)) for role in roles for index in range(all_roles[role].replicas)]
    leader = role_rules.leader(name for role, name in tasks if role != "evaluator")
    return list(dict.fromkeys(role for role, name in tasks if not role_rules.mounts_run_dir(name, leader=leader)))
