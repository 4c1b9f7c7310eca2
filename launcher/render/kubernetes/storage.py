"""The run's volume: its claim, who mounts it, and whether that can work. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.errors import UsageError
from launcher.plan.container_paths import CONTAINER_RUNS
from launcher.plan.models import RoleName
from launcher.plan.role_groups import groups
from launcher.plan.role_rules import leading_role_name
from launcher.render.kubernetes.objects import COMPONENT, TENSORBOARD, VOLUME_LABEL, Object, Run, metadata
from launcher.spec.models import ClusterSpec
from launcher.spec.names import RUN_VOLUME
from launcher.spec.problems import all_of
from launcher.spec.role_programs import leading_role, roles_of

_HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True)
class Sharing:
    """The pods that mount the run's volume, by component. `one_node` says that they have to be on the same node."""

    pods: dict[str, int]
    one_node: bool

    @property
    def total(self) -> int:
        """The number of pods that mount it at the same time."""
        return sum(self.pods.values())

    def description(self) -> str:
        """Return who mounts it."""
        return all_of(f"{count} {name}s" if count > 1 else name for name, count in self.pods.items())


def sharing(run: Run) -> Sharing:
    """Return who mounts the run's volume. Raises UsageError when its access mode does not let them."""
    by_role = groups(run.plan)
    pods: dict[str, int] = {group.role: group.count for group in by_role if group.mounts_run_dir}
    if run.has_tensorboard:
        pods[TENSORBOARD] = 1
    access = run.access
    shared = Sharing(pods, one_node=access == "ReadWriteOnce" and sum(pods.values()) > 1)
    if access == "ReadWriteMany" or shared.total <= 1:
        return Sharing(pods, one_node=run.options.one_node)
    several = [group for group in by_role if group.mounts_run_dir and group.count > 1]
    remedies = [_more_nodes(run)]
    if access == "ReadWriteOncePod":
        remedies.append("set tensorboard to false" if shared.total == 1 + run.has_tensorboard else "use ReadWriteOnce")
        raise UsageError(f"{_access_text(run)}, one pod; the volume is mounted by {shared.description()}", ", or ".join(remedies))
    if several and not run.options.one_node:
        remedies.append(fewer_mount(run.spec))
        remedies.append("set kubernetes.one_node to true, if one node has room for all of them")
        raise UsageError(f"{_access_text(run)}, one node; the volume is mounted by {shared.description()}", ", or ".join(remedies))
    _check_gpus(run, [group.role for group in by_role if group.mounts_run_dir])
    return shared


def fewer_mount(spec: ClusterSpec) -> str:
    """Return the remedy by which only one task mounts the volume, beside the evaluator and TensorBoard on its node."""
    if leading_role(spec).replicas == 1:
        return "set storage.mount to one"
    if spec.train is not None:
        return "add a chief, which then mounts it in the workers' place"
    return "add a chief and set storage.mount to one"


def _access_text(run: Run) -> str:
    asked = run.storage.access if run.storage else None
    if run.access == run.claim_access and asked != run.access:
        return f"the claim {run.claim} is {run.access}"
    return f"storage.access is {run.access}" + ("" if asked else " by default")


def _more_nodes(run: Run) -> str:
    if run.claim_access is None:
        return "set storage.access to ReadWriteMany, with a storage class that offers it"
    if not run.own_claim:
        return (
            "set storage.access to ReadWriteMany, which holds whatever the claim says, if several nodes mount its volume all the same, such as NFS"
            ", or name a claim of ReadWriteMany in kubernetes.claim"
        )
    there = "delete that claim with its data (launcher down --delete-data)"
    return f"use a claim of ReadWriteMany, with a storage class that offers it: {there}"


def _check_gpus(run: Run, roles: Sequence[RoleName]) -> None:
    """Raise UsageError where tasks that are put on one node ask for GPUs of different types."""
    wanted = {role: kind for role in roles if (kind := roles_of(run.spec)[role].gpu_type)}
    if len(set(wanted.values())) > 1:
        wanted_types = all_of(f"{role} ({kind})" for role, kind in wanted.items())
        raise UsageError(
            f"{_access_text(run)}, one node; different types of GPU are wanted by {wanted_types}",
            f"give them one gpu_type, or {_more_nodes(run)}",
        )


def check_apart(run: Run) -> None:
    """Raise UsageError where roles that each have a part of the cluster for themselves have to be on one node."""
    shared = sharing(run)
    tied = [name for name in shared.pods if name != TENSORBOARD]  # no part of the JobSet, so it may be anywhere
    if not run.options.exclusive_topology or not shared.one_node or len(tied) < 2:
        return
    key = run.options.exclusive_topology
    narrow = run.access == "ReadWriteOnce"
    why = _access_text(run) if narrow else "kubernetes.one_node is true"
    raise UsageError(
        f"kubernetes.exclusive_topology gives each role a {key} for itself, and {why}, one node: no node can take {all_of(tied)}",
        f"{_more_nodes(run) if narrow else 'set kubernetes.one_node to false'}, or leave kubernetes.exclusive_topology out",
    )


def notice(run: Run) -> str | None:
    """Say why pods are tied to one node, or nothing when they are not."""
    shared = sharing(run)
    if not shared.one_node or shared.total <= 1:
        return None
    why = f"as {_access_text(run)}" if run.access == "ReadWriteOnce" else "as kubernetes.one_node says"
    return f"{shared.description()} are put on one node, {why}"


def claim(run: Run) -> list[Object]:
    """Return the run's claim of a volume; none where the spec names one that is there, or the run has no volume."""
    storage = run.storage
    if storage is None or not run.own_claim:
        return []
    spec: Object = {"accessModes": [run.access]}
    if storage.class_ is not None:
        spec["storageClassName"] = storage.class_
    spec["resources"] = {"requests": {"storage": storage.size}}
    return [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata(run, run.claim), "spec": spec}]


def scratch() -> Object:
    """Return the emptyDir of a task that does not mount the run's volume: RUN_DIR can be written, and is lost with the pod."""
    return {"name": RUN_VOLUME, "emptyDir": {}}


def volume(run: Run) -> Object:
    """Return the run's volume as a pod has it."""
    return {"name": RUN_VOLUME, "persistentVolumeClaim": {"claimName": run.claim}}


def mount(*, read_only: bool = False) -> Object:
    """Return where a container has the run's volume."""
    return {"name": RUN_VOLUME, "mountPath": CONTAINER_RUNS} | ({"readOnly": True} if read_only else {})


def together(run: Run, component: str) -> Object:
    """Return the pod affinity of a component that mounts the volume, if all that do have to be on one node.

    The first pod of the leader's role may go anywhere: the scheduler lets a pod that matches its own term be the first. The terms of other
    components match only pods of components beside their own, so these pods wait for the leader's. They need less, and would else choose a
    node where it finds no GPU or no room. The scheduler does not count a leader that has ended: each component then follows another.
    """
    shared = sharing(run)
    if not shared.one_node:
        return {}
    chosen: Object = {"matchLabels": {VOLUME_LABEL: run.name}}
    if component != leading_role_name(roles_of(run.spec)):
        chosen["matchExpressions"] = [{"key": COMPONENT, "operator": "In", "values": [name for name in shared.pods if name != component]}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": chosen, "topologyKey": _HOSTNAME}]}


def follows_gpus(run: Run) -> bool:
    """Return whether the volume is on a node with GPUs, whose taint those that ask for none have to tolerate, too."""
    return run.access != "ReadWriteMany" and any(roles_of(run.spec)[group.role].gpus for group in groups(run.plan) if group.mounts_run_dir)


def volume_labels(run: Run) -> dict[str, str]:
    """Return the labels of the pods that mount the volume."""
    return {VOLUME_LABEL: run.name} if sharing(run).one_node else {}
