"""The run's volume: its claim, the pods that mount it, and whether its access mode allows that. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.errors import UsageError
from launcher.plan.container_paths import CONTAINER_RUNS
from launcher.plan.models import RoleName
from launcher.plan.role_rules import leading_role_name
from launcher.plan.task_groups import groups
from launcher.render.kubernetes.objects import COMPONENT_LABEL, TENSORBOARD, VOLUME_LABEL, Object, Run, metadata
from launcher.spec.models import ClusterSpec
from launcher.spec.names import RUN_VOLUME
from launcher.spec.problems import all_of
from launcher.spec.role_programs import leading_role, roles_of

_HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True)
class VolumePods:
    """The pods that mount the run's volume, by component. `one_node` is whether they have to be on the same node."""

    pods: dict[str, int]
    one_node: bool

    @property
    def total(self) -> int:
        """The number of pods that mount it at the same time."""
        return sum(self.pods.values())

    def description(self) -> str:
        """Return the components that mount it, as text."""
        return all_of(f"{count} {name}s" if count > 1 else name for name, count in self.pods.items())


def volume_pods(run: Run) -> VolumePods:
    """Return the pods that mount the run's volume. Raises UsageError when its access mode does not allow that."""
    by_role = groups(run.plan)
    pods: dict[str, int] = {group.role: group.count for group in by_role if group.mounts_run_dir}
    if run.has_tensorboard:
        pods[TENSORBOARD] = 1
    access = run.access
    shared = VolumePods(pods, one_node=True)
    if access == "ReadWriteMany" or shared.total <= 1:
        return VolumePods(pods, one_node=run.options.one_node)
    several = [group for group in by_role if group.mounts_run_dir and group.count > 1]
    remedies = [_many_nodes_remedy(run)]
    if access == "ReadWriteOncePod":
        remedies.append("set tensorboard to false" if shared.total == 1 + run.has_tensorboard else "use ReadWriteOnce")
        raise UsageError(f"{_access_text(run)}, one pod; the volume is mounted by {shared.description()}", ", or ".join(remedies))
    if several and not run.options.one_node:
        remedies.append(single_mount_remedy(run.spec))
        remedies.append("set kubernetes.one_node to true, if one node has room for all of them")
        raise UsageError(f"{_access_text(run)}, one node; the volume is mounted by {shared.description()}", ", or ".join(remedies))
    _check_gpus(run, [group.role for group in by_role if group.mounts_run_dir])
    return shared


def single_mount_remedy(spec: ClusterSpec) -> str:
    """Return the remedy that lets only one task mount the volume (and, on its node, the evaluator and TensorBoard)."""
    if leading_role(spec).replicas == 1:
        return "set storage.mount to one"
    if spec.train is not None:
        return "add a chief, which then mounts it in the workers' place"
    return "add a chief and set storage.mount to one"


def _access_text(run: Run) -> str:
    requested = run.storage.access if run.storage else None
    if run.access == run.claim_access and requested != run.access:
        return f"the claim {run.claim} is {run.access}"
    return f"storage.access is {run.access}" + ("" if requested else " by default")


def _many_nodes_remedy(run: Run) -> str:
    """Return the remedy that lets the pods of many nodes mount the volume."""
    if run.claim_access is None:
        return "set storage.access to ReadWriteMany, with a storage class that offers it"
    if not run.has_own_claim:
        return (
            "set storage.access to ReadWriteMany, which has priority over the claim, if several nodes can mount its volume anyway, e.g. NFS"
            ", or name a claim of ReadWriteMany in kubernetes.claim"
        )
    deletion = "delete that claim with its data (launcher down --delete-data)"
    return f"use a claim of ReadWriteMany, with a storage class that offers it: {deletion}"


def _check_gpus(run: Run, roles: Sequence[RoleName]) -> None:
    """Raise UsageError if tasks that have to be on one node request GPUs of different types."""
    gpu_types = {role: kind for role in roles if (kind := roles_of(run.spec)[role].gpu_type)}
    if len(set(gpu_types.values())) > 1:
        description = all_of(f"{role} ({kind})" for role, kind in gpu_types.items())
        raise UsageError(
            f"{_access_text(run)}, one node; different types of GPU are requested by {description}",
            f"give them one gpu_type, or {_many_nodes_remedy(run)}",
        )


def check_exclusive_topology(run: Run) -> None:
    """Raise UsageError if roles have to be on one node, but `exclusive_topology` separates them."""
    shared = volume_pods(run)
    on_one_node = [name for name in shared.pods if name != TENSORBOARD]  # not part of the JobSet, so it may be anywhere
    if not run.options.exclusive_topology or not shared.one_node or len(on_one_node) < 2:
        return
    key = run.options.exclusive_topology
    is_by_access = run.access == "ReadWriteOnce"
    reason = _access_text(run) if is_by_access else "kubernetes.one_node is true"
    raise UsageError(
        f"kubernetes.exclusive_topology gives each role a {key} for itself, and {reason}, one node: no node can take {all_of(on_one_node)}",
        f"{_many_nodes_remedy(run) if is_by_access else 'set kubernetes.one_node to false'}, or leave kubernetes.exclusive_topology out",
    )


def notice(run: Run) -> str | None:
    """Return a notice with the reason why pods are on one node, or None if they need not be."""
    shared = volume_pods(run)
    if not shared.one_node or shared.total <= 1:
        return None
    reason = f"as {_access_text(run)}" if run.access == "ReadWriteOnce" else "as kubernetes.one_node says"
    return f"{shared.description()} are put on one node, {reason}"


def claim(run: Run) -> list[Object]:
    """Return the run's claim of a volume; none if the spec names an existing one, or the run has no volume."""
    storage = run.storage
    if storage is None or not run.has_own_claim:
        return []
    spec: Object = {"accessModes": [run.access]}
    if storage.class_ is not None:
        spec["storageClassName"] = storage.class_
    spec["resources"] = {"requests": {"storage": storage.size}}
    return [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata(run, run.claim), "spec": spec}]


def temporary_run_dir() -> Object:
    """Return the emptyDir of a task that does not mount the run's volume: its RUN_DIR is lost with the pod."""
    return {"name": RUN_VOLUME, "emptyDir": {}}


def volume(run: Run) -> Object:
    """Return the run's volume for a pod."""
    return {"name": RUN_VOLUME, "persistentVolumeClaim": {"claimName": run.claim}}


def mount(*, read_only: bool = False) -> Object:
    """Return a container's mount of the run's volume."""
    return {"name": RUN_VOLUME, "mountPath": CONTAINER_RUNS} | ({"readOnly": True} if read_only else {})


def volume_affinity(run: Run, component: str) -> Object:
    """Return the pod affinity of a component that mounts the volume; empty unless all such pods have to be on one node.

    The scheduler may place the first pod of the leader's role anywhere, because that pod matches its own term. The terms of other components
    match only pods of components besides their own, so these pods wait for the leader's. They need less, and would otherwise choose a
    node without a GPU or room for the leader. The scheduler ignores a leader that has ended: each component then follows another.
    """
    shared = volume_pods(run)
    if not shared.one_node:
        return {}
    chosen: Object = {"matchLabels": {VOLUME_LABEL: run.name}}
    if component != leading_role_name(roles_of(run.spec)):
        others = [name for name in shared.pods if name != component]
        chosen["matchExpressions"] = [{"key": COMPONENT_LABEL, "operator": "In", "values": others}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": chosen, "topologyKey": _HOSTNAME}]}


def is_on_gpu_node(run: Run) -> bool:
    """Return whether the volume's node has GPUs: pods without GPUs that mount it must tolerate that node's taint."""
    return run.access != "ReadWriteMany" and any(roles_of(run.spec)[group.role].gpus for group in groups(run.plan) if group.mounts_run_dir)


def volume_labels(run: Run) -> dict[str, str]:
    """Return the labels of the pods that mount the volume."""
    return {VOLUME_LABEL: run.name} if volume_pods(run).one_node else {}
