"""Whether the NetworkPolicies of a namespace let the tasks of a run send what they have to: questions to DNS, and to each other. Pure.

Policies add up: pods that one of them selects may send what any of those allows, and nothing else.
https://kubernetes.io/docs/concepts/services-networking/network-policies/
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from launcher.plan.addresses import EXCHANGE_PORT, PORT
from launcher.plan.role_groups import groups
from launcher.render.kubernetes.objects import CLUSTER_LABEL, Object, Run, selector
from trainer.strategies import STRATEGIES


@dataclass(frozen=True)
class RequiredPort:
    """A port that a task has to reach, of the run's own tasks or of a service of the cluster."""

    description: str
    port: int
    protocol: str = "TCP"
    of_tasks: bool = True


_DNS = RequiredPort("DNS", 53, "UDP", of_tasks=False)
_PORT = RequiredPort(f"port {PORT} of each other", PORT)
_EXCHANGE = RequiredPort(f"port {EXCHANGE_PORT} of each other", EXCHANGE_PORT)


@dataclass(frozen=True)
class EgressPolicies:
    """The policies that say what a run's tasks may send, by name, and what they have to and may not."""

    names: tuple[str, ...]
    lacking: tuple[str, ...]


def egress_policies(policies: Sequence[Object], run: Run) -> EgressPolicies:
    """Return which policies hold the tasks of a run back.

    An unknown, where an address is or a port's name, counts as allowed; so does a port that a task may reach of some other role.
    """
    names: dict[str, None] = {}
    lacking: dict[str, None] = {}
    every = [{**selector(run, group.role), CLUSTER_LABEL: run.name, **run.options.labels} for group in groups(run.plan)]
    for labels in every:
        bound = [one for one in policies if _is_of_sending(one) and _matches(one["spec"].get("podSelector") or {}, labels)]
        names |= dict.fromkeys(one["metadata"]["name"] for one in bound)
        rules = [rule for one in bound for rule in one["spec"].get("egress") or ()]
        needs = _needs(run) if bound else ()
        lacking |= dict.fromkeys(need.description for need in needs if not any(_allows(rule, need, every) for rule in rules))
    return EgressPolicies(tuple(names), tuple(lacking))


def _is_of_sending(policy: Object) -> bool:
    return "Egress" in (policy["spec"].get("policyTypes") or ())


def _needs(run: Run) -> tuple[RequiredPort, ...]:
    """Return what the tasks have to reach; one task has nobody to talk to."""
    if sum(bool(task.address) for task in run.plan.tasks) < 2:
        return (_DNS,)
    return (_DNS, _PORT, _EXCHANGE) if STRATEGIES[run.spec.strategy].all_reduces else (_DNS, _PORT)


def _allows(rule: Object, need: RequiredPort, tasks: Iterable[Mapping[str, str]]) -> bool:
    ports, peers = rule.get("ports"), rule.get("to")
    if ports and not any(_covers(port, need) for port in ports):
        return False
    return not peers or any(_may_be(peer, need, labels) for peer in peers for labels in tasks)


def _covers(port: Object, need: RequiredPort) -> bool:
    number = port.get("port")
    if port.get("protocol", "TCP") != need.protocol:
        return False
    return not isinstance(number, int) or number <= need.port <= port.get("endPort", number)


def _may_be(peer: Object, need: RequiredPort, labels: Mapping[str, str]) -> bool:
    """Return whether a rule's peer may be what is needed: without a namespace it is a pod of the run's own."""
    if "ipBlock" in peer:
        return True
    if need.of_tasks:
        return _matches(peer.get("podSelector") or {}, labels)
    return "namespaceSelector" in peer


def _matches(wanted: Object, labels: Mapping[str, str]) -> bool:
    # https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
    same = (wanted.get("matchLabels") or {}).items() <= labels.items()
    return same and all(_fits(one, labels) for one in wanted.get("matchExpressions") or ())


def _fits(expression: Object, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }.get(expression["operator"], False)
