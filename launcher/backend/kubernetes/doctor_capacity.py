"""Check that the nodes of a cluster have the resources that a spec asks for."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.backend.check_results import CheckResult, ok, problem, warning
from launcher.backend.kubernetes import node_capacity
from launcher.backend.kubernetes.client import Cluster, Object
from launcher.backend.kubernetes.object_fields import has_ended, node_of, true_condition
from launcher.errors import LauncherError
from launcher.render.kubernetes import pods
from launcher.spec.containers import Container
from launcher.spec.models import ClusterSpec, Role
from launcher.spec.problems import all_of
from launcher.spec.quantities import millicores, parse_quantity
from launcher.spec.role_programs import init_containers_of, roles_of, sidecars_of

_CLUSTER_ROLE = "have docs/kubernetes-clusterrole.yaml applied and bound to you: it is optional"
_REPELLING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})


@dataclass
class Node:
    """One schedulable node: its labels, and how much of each resource is free."""

    name: str
    labels: dict[str, str]
    free: dict[str, float] = field(default_factory=dict)
    taints: Sequence[Object] = ()  # those that repel pods

    def fits(self, required: "PodRequirements") -> bool:
        """Return whether a pod with these requirements fits on the node."""
        fits = all(self.free.get(key, 0.0) >= value for key, value in required.amounts.items())
        return fits and required.labels.items() <= self.labels.items() and not self.untolerated_taints(required)

    def untolerated_taints(self, required: "PodRequirements") -> list[str]:
        """Return the taints that the pod does not tolerate, as kubectl writes them."""
        return [
            _taint_text(taint) for taint in self.taints if not any(_tolerates(toleration, taint) for toleration in required.tolerations)
        ]


@dataclass(frozen=True)
class PodRequirements:
    """A pod's requests, node selector and tolerations."""

    amounts: dict[str, float]
    labels: dict[str, str]
    tolerations: Sequence[Object] = ()


def examine(cluster: Cluster, spec: ClusterSpec | None, colocated: Collection[str] = ()) -> Iterator[CheckResult]:
    """Yield the nodes, and whether the tasks of a spec fit on their free resources, those of the `colocated` roles on one node."""
    try:
        listed = cluster.nodes()
    except LauncherError:
        yield warning("nodes", "you may not list nodes: their resources are not known", _CLUSTER_ROLE)
        return
    resource = "nvidia.com/gpu" if spec is None else spec.kubernetes.gpu_resource
    nodes = [empty_node(item) for item in listed if _takes_pods(item)]
    gpus = sum(node.free.get(resource, 0.0) for node in nodes)
    label = "nvidia.com/gpu.product" if spec is None else spec.kubernetes.gpu_type_label
    kinds = sorted({node.labels[label] for node in nodes if label in node.labels})
    yield ok("nodes", f"{len(nodes)} of {len(listed)} take pods; {gpus:.0f} {resource}" + (f" ({', '.join(kinds)})" if kinds else ""))
    if spec is None:
        return
    try:
        other_pods = cluster.request("get", "/api/v1/pods", action="listing pods").get("items") or []
    except LauncherError:
        yield warning("capacity", "you may not list pods of all namespaces: the checks below ignore all other pods", _CLUSTER_ROLE)
        other_pods = []
    subtract_requests(nodes, other_pods)
    unscheduled = unschedulable_roles(nodes, spec, colocated)
    if unscheduled:
        taints = sorted(
            {taint for role in roles_of(spec).values() for node in nodes for taint in node.untolerated_taints(_requirements(spec, role))}
        )
        tolerate = f"; {', '.join(taints)} keeps pods off nodes, unless kubernetes.tolerations names it" if taints else ""
        access = "; storage.access: ReadWriteMany allows them on different nodes" if _joint(spec, colocated) in unscheduled else ""
        unmet = [message for name, role in roles_of(spec).items() for message in _unmet(name, _requirements(spec, role), listed)]
        remedy = "; ".join(unmet) if unmet else "free some, or add nodes"
        yield problem("capacity", f"no node has room for {', '.join(unscheduled)}", f"{remedy}{tolerate}{access}")
    else:
        yield ok("capacity", "every task fits on the free resources")


def _unmet(role: str, required: PodRequirements, nodes: Sequence[Object]) -> list[str]:
    return [f"{role}: {message}" for message in node_capacity.unmet_requirements(required.amounts, required.labels, nodes)]


def empty_node(item: Object) -> Node:
    """Return a node with all its allocatable resources free."""
    offered: dict[str, Any] = item.get("status", {}).get("allocatable") or {}
    taints = [taint for taint in item.get("spec", {}).get("taints") or () if taint.get("effect") in _REPELLING_EFFECTS]
    labels = dict(item["metadata"].get("labels") or {})
    return Node(item["metadata"]["name"], labels, {key: parse_quantity(value) for key, value in offered.items()}, taints)


def subtract_requests(nodes: Sequence[Node], pods: Sequence[Object]) -> None:
    """Subtract the requests of pods that have not ended from the free resources of their nodes."""
    by_name = {node.name: node for node in nodes}
    for pod in pods:
        assigned = by_name.get(node_of(pod))
        if assigned is None or has_ended(pod):
            continue
        assigned.free["pods"] = assigned.free.get("pods", 0.0) - 1
        for key, value in node_capacity.pod_resources(pod, "requests").items():
            assigned.free[key] = assigned.free.get(key, 0.0) - value


def unschedulable_roles(nodes: Sequence[Node], spec: ClusterSpec, colocated: Collection[str] = ()) -> list[str]:
    """Return `NUMBER ROLE` for each role with tasks that fit on no node; the largest tasks are placed first.

    All tasks of the `colocated` roles are scheduled together on one node.
    """
    unscheduled: dict[str, int] = {}
    requests = [(name, _requirements(spec, role), role.replicas) for name, role in roles_of(spec).items() if name not in colocated]
    joint = _joint(spec, colocated)
    if joint_roles := {name: role for name, role in roles_of(spec).items() if name in colocated}:
        requests.append((joint or all_of(joint_roles), _sum(spec, joint_roles.values()), 1))
    for name, required, count in sorted(requests, key=lambda request: _size(spec, request[1])):
        for _ in range(count):
            fitting = next((node for node in nodes if node.fits(required)), None)
            if fitting is None:
                unscheduled[name] = unscheduled.get(name, 0) + 1
                continue
            for key, value in required.amounts.items():
                fitting.free[key] -= value
    return [name if name == joint else f"{count} {name}" for name, count in unscheduled.items()]


def _joint(spec: ClusterSpec, colocated: Collection[str]) -> str:
    """Return the text for roles that must share one node; empty for fewer than two."""
    together = [name for name in roles_of(spec) if name in colocated]
    return f"{all_of(together)} on one node" if len(together) > 1 else ""


def _size(spec: ClusterSpec, required: PodRequirements) -> tuple[float, float]:
    return -required.amounts.get(spec.kubernetes.gpu_resource, 0.0), -required.amounts.get("cpu", 0.0)


def _sum(spec: ClusterSpec, roles: Iterable[Role]) -> PodRequirements:
    """Return the requirements of all tasks of some roles on one node; a toleration of one counts for all."""
    amounts: dict[str, float] = {}
    labels: dict[str, str] = {}
    tolerations: list[Object] = []
    for role in roles:
        required = _requirements(spec, role)
        for key, value in required.amounts.items():
            amounts[key] = amounts.get(key, 0.0) + value * role.replicas
        labels |= required.labels
        tolerations += required.tolerations
    return PodRequirements(amounts, labels, tolerations)


def _requirements(spec: ClusterSpec, role: Role) -> PodRequirements:
    options = spec.kubernetes
    required = {"pods": 1.0}
    initial, sidecars = init_containers_of(spec, role), sidecars_of(spec, role)
    # https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers
    for key, amount_of in (("cpu", _cores), ("memory", _bytes)):
        if most := max([amount_of(role) + sum(map(amount_of, sidecars)), *map(amount_of, initial)]):
            required[key] = most
    if role.gpus:
        required[options.gpu_resource] = float(role.gpus)
    labels = dict(options.node_selector) | ({options.gpu_type_label: role.gpu_type} if role.gpu_type else {})
    return PodRequirements(required, labels, pods.tolerations(options, role))


def _cores(of: Role | Container) -> float:
    return 0.0 if of.cpu is None else millicores(of.cpu) / 1000


def _bytes(of: Role | Container) -> float:
    return 0.0 if of.memory is None else parse_quantity(of.memory)


def _tolerates(toleration: Object, taint: Object) -> bool:
    # https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    if toleration.get("effect") not in {None, taint["effect"]} or toleration.get("key") not in {None, taint["key"]}:
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")


def _taint_text(taint: Object) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _takes_pods(item: Object) -> bool:
    if item.get("spec", {}).get("unschedulable"):
        return False
    return true_condition(item, "Ready") is not None
