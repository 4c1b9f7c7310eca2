"""Check that the NetworkPolicies of a namespace allow the egress that the tasks of a run need: to DNS and to each other. Pure.

Policies add up: a pod that policies select may send only what at least one of them allows.
https://kubernetes.io/docs/concepts/services-networking/network-policies/
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from launcher.plan.addresses import ALL_REDUCE_PORT, PORT
from launcher.plan.task_groups import groups
from launcher.render.kubernetes.objects import TASK_LABEL, Object, Run, selector
from trainer.strategies import STRATEGIES


@dataclass(frozen=True)
class RequiredPort:
    """A port that a task must reach: of the run's other tasks, or of the cluster's DNS."""

    description: str
    port: int
    protocol: str = "TCP"
    of_tasks: bool = True


_DNS = RequiredPort("DNS", 53, "UDP", of_tasks=False)
_PORT = RequiredPort(f"port {PORT} of each other", PORT)
_ALL_REDUCE = RequiredPort(f"port {ALL_REDUCE_PORT} of each other", ALL_REDUCE_PORT)


@dataclass(frozen=True)
class EgressPolicies:
    """The names of the policies that restrict the egress of a run's tasks, and the required egress that they forbid."""

    names: tuple[str, ...]
    lacking: tuple[str, ...]


def egress_policies(policies: Sequence[Object], run: Run) -> EgressPolicies:
    """Return the policies that restrict the egress of a run's tasks, and what these lack.

    An IP block and a port given by name count as allowed; so does a port that a task may reach on at least one role.
    """
    names: dict[str, None] = {}
    lacking: dict[str, None] = {}
    all_labels = [{**selector(run, group.role), TASK_LABEL: run.name, **run.options.labels} for group in groups(run.plan)]
    for labels in all_labels:
        selecting = [policy for policy in policies if _is_egress(policy) and _matches(policy["spec"].get("podSelector") or {}, labels)]
        names |= dict.fromkeys(policy["metadata"]["name"] for policy in selecting)
        rules = [rule for policy in selecting for rule in policy["spec"].get("egress") or ()]
        ports = _required_ports(run) if selecting else ()
        lacking |= dict.fromkeys(port.description for port in ports if not any(_allows(rule, port, all_labels) for rule in rules))
    return EgressPolicies(tuple(names), tuple(lacking))


def _is_egress(policy: Object) -> bool:
    return "Egress" in (policy["spec"].get("policyTypes") or ())


def _required_ports(run: Run) -> tuple[RequiredPort, ...]:
    """Return the ports that the tasks must reach; a single task has no peers."""
    if sum(bool(task.address) for task in run.plan.tasks) < 2:
        return (_DNS,)
    return (_DNS, _PORT, _ALL_REDUCE) if STRATEGIES[run.spec.strategy].all_reduces else (_DNS, _PORT)


def _allows(rule: Object, required: RequiredPort, tasks: Iterable[Mapping[str, str]]) -> bool:
    ports, peers = rule.get("ports"), rule.get("to")
    if ports and not any(_covers(port, required) for port in ports):
        return False
    return not peers or any(_may_cover(peer, required, labels) for peer in peers for labels in tasks)


def _covers(port: Object, required: RequiredPort) -> bool:
    number = port.get("port")
    if port.get("protocol", "TCP") != required.protocol:
        return False
    return not isinstance(number, int) or number <= required.port <= port.get("endPort", number)


def _may_cover(peer: Object, required: RequiredPort, labels: Mapping[str, str]) -> bool:
    """Return whether a rule's peer may cover the required port: without a namespace selector it is a pod of the run's namespace."""
    if "ipBlock" in peer:
        return True
    if required.of_tasks:
        return _matches(peer.get("podSelector") or {}, labels)
    return "namespaceSelector" in peer


def _matches(wanted: Object, labels: Mapping[str, str]) -> bool:
    # https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
    same = (wanted.get("matchLabels") or {}).items() <= labels.items()
    return same and all(_fits(expression, labels) for expression in wanted.get("matchExpressions") or ())


def _fits(expression: Object, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }.get(expression["operator"], False)
