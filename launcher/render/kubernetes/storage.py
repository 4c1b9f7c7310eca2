"""The run's volume: its claim, who mounts it, and whether that can work. Pure."""

from dataclasses import dataclass

from launcher.errors import UsageError
from launcher.plan.groups import groups
from launcher.plan.places import CONTAINER_RUNS
from launcher.render.kubernetes.objects import VOLUME_LABEL, Object, Run, metadata
from launcher.spec.problems import all_of

RUN_VOLUME = "run"
_HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True)
class Sharing:
    """Who mounts the run's volume: pods by component. `one_node` says that they have to be on the same node."""

    pods: dict[str, int]
    one_node: bool

    @property
    def total(self) -> int:
        """How many pods mount it at the same time."""
        return sum(self.pods.values())

    def words(self) -> str:
        """Say who mounts it."""
        return all_of(f"{count} {name}s" if count > 1 else name for name, count in self.pods.items())


def sharing(run: Run) -> Sharing:
    """Return who mounts the run's volume. Raises UsageError when its access mode does not let them."""
    by_role = groups(run.plan)
    pods: dict[str, int] = {group.role: group.count for group in by_role if group.mounts_run_dir}
    if run.has_tensorboard:
        pods["tensorboard"] = 1
    access = run.access
    shared = Sharing(pods, one_node=access == "ReadWriteOnce" and sum(pods.values()) > 1)
    if access == "ReadWriteMany" or shared.total <= 1:
        return Sharing(pods, one_node=run.options.one_node)
    several = [group for group in by_role if group.mounts_run_dir and group.count > 1]
    remedies = ["set storage.access to ReadWriteMany, with a storage class that offers it"]
    if access == "ReadWriteOncePod":
        remedies.append("set kubernetes.tensorboard to false" if shared.total == 1 + run.has_tensorboard else "use ReadWriteOnce")
        raise UsageError(f"storage.access is ReadWriteOncePod, one pod; the volume is mounted by {shared.words()}", ", or ".join(remedies))
    if several and not run.options.one_node:
        if run.spec.train is not None and not run.spec.roles.chief:
            remedies.append("add a chief, which then mounts it in the workers' place")
        remedies.append("set kubernetes.one_node to true, if one node has room for all of them")
        raise UsageError(f"storage.access is ReadWriteOnce, one node; the volume is mounted by {shared.words()}", ", or ".join(remedies))
    return shared


def notice(run: Run) -> str | None:
    """Say why pods are tied to one node, or nothing when they are not."""
    shared = sharing(run)
    if not shared.one_node or shared.total <= 1:
        return None
    why = "as storage.access is ReadWriteOnce" if run.access == "ReadWriteOnce" else "as kubernetes.one_node says"
    return f"{shared.words()} are put on one node, {why}"


def claim(run: Run) -> list[Object]:
    """Return the run's claim of a volume; none where the spec names one that is there, or the run has no volume."""
    storage = run.storage
    if storage is None or not run.own_claim:
        return []
    spec: Object = {"accessModes": [storage.access]}
    if storage.class_ is not None:
        spec["storageClassName"] = storage.class_
    spec["resources"] = {"requests": {"storage": storage.size}}
    return [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata(run, run.claim), "spec": spec}]


def volume(run: Run) -> Object:
    """Return the run's volume as a pod has it."""
    return {"name": RUN_VOLUME, "persistentVolumeClaim": {"claimName": run.claim}}


def mount(*, read_only: bool = False) -> Object:
    """Return where a container has the run's volume."""
    return {"name": RUN_VOLUME, "mountPath": CONTAINER_RUNS} | ({"readOnly": True} if read_only else {})


def together(run: Run) -> Object:
    """Return the pod affinity of those that mount the volume, where they have to be on one node.

    The first of them may go anywhere: the scheduler lets a pod that matches its own term be the first.
    """
    if not sharing(run).one_node:
        return {}
    term = {"labelSelector": {"matchLabels": {VOLUME_LABEL: run.name}}, "topologyKey": _HOSTNAME}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def volume_labels(run: Run) -> dict[str, str]:
    """Return the labels of the pods that mount the volume."""
    return {VOLUME_LABEL: run.name} if sharing(run).one_node else {}
