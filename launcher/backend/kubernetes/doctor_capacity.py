"""Whether the nodes of a cluster have what a spec asks for."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.backend.check_results import CheckResult, ok, problem, warning
from launcher.backend.kubernetes import node_capacity
from launcher.backend.kubernetes.client import Cluster, Object
from launcher.backend.kubernetes.node_capacity import amount
from launcher.errors import LauncherError
from launcher.render.kubernetes import pods
from launcher.spec.containers import Container
from launcher.spec.models import ClusterSpec, Role
from launcher.spec.problems import all_of
from launcher.spec.quantities import millicores
from launcher.spec.role_programs import init_containers_of, roles_of, sidecars_of

_CLUSTER_ROLE = "have docs/kubernetes-clusterrole.yaml applied and bound to you: it is optional"
_KEEPS_OFF = frozenset({"NoSchedule", "NoExecute"})


@dataclass
class Node:
    """One node that takes pods: its labels, and what of each resource it still has."""

    name: str
    labels: dict[str, str]
    free: dict[str, float] = field(default_factory=dict)
    taints: Sequence[Object] = ()  # those that keep pods off

    def takes(self, wanted: "PodRequirements") -> bool:
        """Return whether a pod with these requests, this node selector and these tolerations fits."""
        fits = all(self.free.get(key, 0.0) >= value for key, value in wanted.amounts.items())
        return fits and wanted.labels.items() <= self.labels.items() and not self.untolerated_taints(wanted)

    def untolerated_taints(self, wanted: "PodRequirements") -> list[str]:
        """Return the taints that the pod does not tolerate, as kubectl writes them."""
        return [_taint_text(taint) for taint in self.taints if not any(_tolerates(one, taint) for one in wanted.tolerations)]


@dataclass(frozen=True)
class PodRequirements:
    """Demands of a pod on its node."""

    amounts: dict[str, float]
    labels: dict[str, str]
    tolerations: Sequence[Object] = ()


def examine(cluster: Cluster, spec: ClusterSpec | None, tied: Collection[str] = ()) -> Iterator[CheckResult]:
    """Yield what nodes there are and whether the tasks of a spec fit on what is free, those of the `tied` roles on one node."""
    try:
        listed = cluster.nodes()
    except LauncherError:
        yield warning("nodes", "you may not list nodes: their resources are not known", _CLUSTER_ROLE)
        return
    resource = "nvidia.com/gpu" if spec is None else spec.kubernetes.gpu_resource
    nodes = [node(one) for one in listed if _takes_pods(one)]
    gpus = sum(one.free.get(resource, 0.0) for one in nodes)
    label = "nvidia.com/gpu.product" if spec is None else spec.kubernetes.gpu_type_label
    kinds = sorted({one.labels[label] for one in nodes if label in one.labels})
    yield ok("nodes", f"{len(nodes)} of {len(listed)} take pods; {gpus:.0f} {resource}" + (f" ({', '.join(kinds)})" if kinds else ""))
    if spec is None:
        return
    try:
        others = cluster.request("get", "/api/v1/pods", doing="listing pods").get("items") or []
    except LauncherError:
        yield warning(
            "capacity", "you may not list pods of all namespaces: the findings below are as if nobody else was there", _CLUSTER_ROLE
        )
        others = []
    take(nodes, others)
    left = unschedulable_roles(nodes, spec, tied)
    if left:
        taints = sorted(
            {taint for role in roles_of(spec).values() for one in nodes for taint in one.untolerated_taints(_wanted(spec, role))}
        )
        tolerate = f"; {', '.join(taints)} keeps pods off nodes: kubernetes.tolerations lets them on" if taints else ""
        apart = "; storage.access: ReadWriteMany lets them on different nodes" if _joint(spec, tied) in left else ""
        never = [message for name, role in roles_of(spec).items() for message in _never(name, _wanted(spec, role), listed)]
        remedy = "; ".join(never) if never else "free some, or add nodes"
        yield problem("capacity", f"no node has room for {', '.join(left)}", f"{remedy}{tolerate}{apart}")
    else:
        yield ok("capacity", "every task fits on what is free")


def _never(role: str, wanted: PodRequirements, nodes: Sequence[Object]) -> list[str]:
    return [f"{role}: {message}" for message in node_capacity.lacking(wanted.amounts, wanted.labels, nodes)]


def node(one: Object) -> Node:
    """Return a node with all that it has to give."""
    offered: dict[str, Any] = one.get("status", {}).get("allocatable") or {}
    taints = [taint for taint in one.get("spec", {}).get("taints") or () if taint.get("effect") in _KEEPS_OFF]
    labels = dict(one["metadata"].get("labels") or {})
    return Node(one["metadata"]["name"], labels, {key: amount(value) for key, value in offered.items()}, taints)


def take(nodes: Sequence[Node], pods: Sequence[Object]) -> None:
    """Take from nodes what pods that have not ended were promised."""
    by_name = {one.name: one for one in nodes}
    for pod in pods:
        on = by_name.get(pod.get("spec", {}).get("nodeName", ""))
        if on is None or pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
            continue
        on.free["pods"] = on.free.get("pods", 0.0) - 1
        for container in pod["spec"].get("containers", ()):
            for key, value in (container.get("resources", {}).get("requests") or {}).items():
                on.free[key] = on.free.get(key, 0.0) - amount(value)


def unschedulable_roles(nodes: Sequence[Node], spec: ClusterSpec, tied: Collection[str] = ()) -> list[str]:
    """Return the roles, with how many tasks of each, that fit on no node; the largest tasks are scheduled first.

    Tasks of the `tied` roles are put on one node, as one.
    """
    left: dict[str, int] = {}
    asked = [(name, _wanted(spec, role), role.replicas) for name, role in roles_of(spec).items() if name not in tied]
    joint = _joint(spec, tied)
    if together := {name: role for name, role in roles_of(spec).items() if name in tied}:
        asked.append((joint or all_of(together), _sum(spec, together.values()), 1))
    for name, wanted, count in sorted(asked, key=lambda one: _size(spec, one[1])):
        for _ in range(count):
            chosen = next((one for one in nodes if one.takes(wanted)), None)
            if chosen is None:
                left[name] = left.get(name, 0) + 1
                continue
            for key, value in wanted.amounts.items():
                chosen.free[key] -= value
    return [name if name == joint else f"{count} {name}" for name, count in left.items()]


def _joint(spec: ClusterSpec, tied: Collection[str]) -> str:
    """Return what roles that have to be on one node are called, empty where it is one role at most."""
    together = [name for name in roles_of(spec) if name in tied]
    return f"{all_of(together)} on one node" if len(together) > 1 else ""


def _size(spec: ClusterSpec, wanted: PodRequirements) -> tuple[float, float]:
    return -wanted.amounts.get(spec.kubernetes.gpu_resource, 0.0), -wanted.amounts.get("cpu", 0.0)


def _sum(spec: ClusterSpec, roles: Iterable[Role]) -> PodRequirements:
    """Return what all tasks of some roles ask of one node, where each tolerates what one of them does."""
    amounts: dict[str, float] = {}
    labels: dict[str, str] = {}
    tolerations: list[Object] = []
    for role in roles:
        wanted = _wanted(spec, role)
        for key, value in wanted.amounts.items():
            amounts[key] = amounts.get(key, 0.0) + value * role.replicas
        labels |= wanted.labels
        tolerations += wanted.tolerations
    return PodRequirements(amounts, labels, tolerations)


def _wanted(spec: ClusterSpec, role: Role) -> PodRequirements:
    options = spec.kubernetes
    wanted = {"pods": 1.0}
    before, together = init_containers_of(spec, role), sidecars_of(spec, role)
    # https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers
    for key, of in (("cpu", _cores), ("memory", _bytes)):
        if most := max([of(role) + sum(map(of, together)), *map(of, before)]):
            wanted[key] = most
    if role.gpus:
        wanted[options.gpu_resource] = float(role.gpus)
    labels = dict(options.node_selector) | ({options.gpu_type_label: role.gpu_type} if role.gpu_type else {})
    return PodRequirements(wanted, labels, pods.tolerations(options, role))


def _cores(of: Role | Container) -> float:
    return 0.0 if of.cpu is None else millicores(of.cpu) / 1000


def _bytes(of: Role | Container) -> float:
    return 0.0 if of.memory is None else amount(of.memory)


def _tolerates(toleration: Object, taint: Object) -> bool:
    # https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    if toleration.get("effect") not in {None, taint["effect"]} or toleration.get("key") not in {None, taint["key"]}:
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")


def _taint_text(taint: Object) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _takes_pods(one: Object) -> bool:
    if one.get("spec", {}).get("unschedulable"):
        return False
    ready: Object = next((condition for condition in one.get("status", {}).get("conditions") or () if condition["type"] == "Ready"), {})
    return bool(ready.get("status") == "True")
