"""The fields of a spec that a target does not support: each is named, so that nothing is left out without a word. Pure.

launcher/plan/target_rules.py says which function is of which target.
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
    """Return the notice that a cluster has no address of its nodes for TensorBoard."""
    if not spec.tensorboard or "host" not in spec.tensorboard.model_fields_set:
        return []
    return ["tensorboard.host left out: TensorBoard is on a Service; `kubectl port-forward` makes it reachable from outside"]


def extra_containers(spec: ClusterSpec) -> list[str]:
    """Return the init containers and sidecars that processes do without."""
    given = containers_of(spec)
    found = []
    for kind, words in (("init_containers", "init containers"), ("sidecars", "sidecars")):
        if names := dict.fromkeys(one.name for path, one in given if path[-2] == kind):
            found.append(f"{words} left out: {', '.join(names)}; tasks are processes, without containers beside them")
    return found


def volumes(spec: ClusterSpec) -> list[str]:
    """Return the volumes that processes do without."""
    named = ", ".join(volume.name for volume in spec.volumes)
    return [f"volumes left out: {named}; tasks see this machine's own directories"] if named else []


def volumes_of_kubernetes(spec: ClusterSpec) -> list[str]:
    """Return the volumes that only a cluster has."""
    named = ", ".join(volume.name for volume in spec.volumes if not is_in_compose(volume))
    return [f"volumes left out: {named}; a `path` beside `source` names the directory that stands in the place of one"] if named else []


def run_volume(spec: ClusterSpec) -> list[str]:
    """Return the containers that mount the run's volume beside tasks that do not have it."""
    given = roles_of(spec)
    without = _roles_without_run_volume(spec)
    found = dict.fromkeys(
        f"{one.name} ({role})"
        for role in without
        for one in extra_containers_of(spec, given[role])
        for mount in one.mounts
        if mount.volume == RUN_VOLUME
    )
    if not found:
        return []
    return [f"mounts of the run's volume left out: {', '.join(found)}; it is for containers beside tasks that have it"]


def _roles_without_run_volume(spec: ClusterSpec) -> list[RoleName]:
    """Return the roles of which a task does not have the run's volume in Compose: all tasks of a program have it, where there is one."""
    given = roles_of(spec)
    roles = [role for role in role_rules.ROLE_ORDER if role in given]
    if storage_of(spec) is None:
        return roles
    if spec.train is None:
        return []
    tasks = [(role, role_rules.task_name(role, index)) for role in roles for index in range(given[role].replicas)]
    leader = role_rules.leader(name for role, name in tasks if role != "evaluator")
    return list(dict.fromkeys(role for role, name in tasks if not role_rules.mounts_run_dir(name, leader=leader)))
