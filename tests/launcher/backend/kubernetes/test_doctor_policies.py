"""Traffic of a run's tasks that NetworkPolicies of a namespace forbid."""

from typing import Any

import pytest

from launcher.backend.kubernetes.doctor_policies import EgressPolicies, egress_policies
from launcher.images import image_for
from launcher.plan import planner
from launcher.render.kubernetes.network import policies
from launcher.render.kubernetes.objects import Run
from launcher.spec.models import ClusterSpec

DNS, PORT, EXCHANGE = "DNS", "port 2222 of each other", "port 2223 of each other"
OWN = {"podSelector": {"matchLabels": {"tf-launcher/cluster": "digits"}}}
ASK_DNS = {
    "to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}],
    "ports": [{"port": 53, "protocol": "UDP"}],
}


def run(strategy: str = "parameter_server", options: dict[str, Any] | None = None, **roles: Any) -> Run:
    roles = roles or {"chief": {}, "ps": {}, "worker": {"replicas": 2}}
    spec = ClusterSpec.model_validate({"version": 1, "name": "digits", "strategy": strategy, "roles": roles, "kubernetes": options or {}})
    return Run(spec, planner.plan(spec, "kubernetes", run_dir="/runs/digits"), image_for(spec))


def policy(name: str, selector: dict[str, Any], *rules: dict[str, Any], types: tuple[str, ...] = ("Egress",)) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"podSelector": selector, "policyTypes": list(types), "egress": list(rules)}}


DENY = policy("deny", {}, types=("Ingress", "Egress"))


def test_a_policy_that_denies_all_is_told_with_what_it_keeps_from_whom() -> None:
    assert egress_policies([DENY], run()) == EgressPolicies(("deny",), (DNS, PORT))
    assert egress_policies([DENY], run("multi_worker_mirrored", worker={"replicas": 2})).lacking == (DNS, PORT, EXCHANGE)
    assert egress_policies([DENY], run("single", chief={})).lacking == (DNS,)


def test_the_policy_of_a_run_that_asks_for_it_lets_its_tasks_send_what_they_have_to() -> None:
    for strategy in ("parameter_server", "multi_worker_mirrored"):
        closed = run(strategy, options={"egress": "tasks"}, chief={}, worker={"replicas": 2}, **({"ps": {}} if strategy[0] == "p" else {}))
        assert egress_policies([DENY, *policies(closed)], closed) == EgressPolicies(("deny", "digits"), ())
        # It allows nothing else: neither other pods nor what is outside.
        (own, *_) = policies(closed)
        dns, tasks = own["spec"]["egress"]
        assert dns == {"ports": [{"protocol": protocol, "port": port} for port in (53, 5353) for protocol in ("UDP", "TCP")]}
        assert tasks["to"] == [OWN]


def test_policies_that_say_nothing_of_sending_or_of_other_pods_hold_nobody() -> None:
    other = policy("other", {"matchLabels": {"app": "web"}})
    arriving = policy("arriving", {}, types=("Ingress",))
    assert egress_policies([other, arriving], run()) == EgressPolicies((), ())


@pytest.mark.parametrize(
    "rules, lacking",
    [
        ([{}], ()),
        ([ASK_DNS], (PORT,)),
        ([ASK_DNS, {"to": [OWN]}], ()),
        ([ASK_DNS, {"to": [OWN], "ports": [{"port": 2000, "endPort": 2300}]}], ()),
        ([ASK_DNS, {"to": [OWN], "ports": [{"port": 443}]}], (PORT,)),
        ([ASK_DNS, {"to": [OWN], "ports": [{"port": 2222, "protocol": "UDP"}]}], (PORT,)),
        ([ASK_DNS, {"to": [{"podSelector": {"matchLabels": {"app": "web"}}}]}], (PORT,)),
        ([{"to": [{"podSelector": {}}]}], (DNS,)),
        ([{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}], ()),
    ],
)
def test_what_another_policy_allows_is_allowed(rules: list[dict[str, Any]], lacking: tuple[str, ...]) -> None:
    allow = policy("allow", {"matchExpressions": [{"key": "tf-launcher/cluster", "operator": "Exists"}]}, *rules)
    assert egress_policies([DENY, allow], run()) == EgressPolicies(("deny", "allow"), lacking)


def test_what_one_role_may_not_the_run_may_not() -> None:
    allow = policy("allow", {"matchExpressions": [{"key": "app.kubernetes.io/component", "operator": "NotIn", "values": ["ps"]}]}, {})
    assert egress_policies([DENY, allow], run()).lacking == (DNS, PORT)


def test_roles_that_may_reach_the_roles_they_need_are_not_held_back() -> None:
    def to(role: str) -> dict[str, Any]:
        return {"to": [{"podSelector": {"matchLabels": {"app.kubernetes.io/component": role}}}]}

    allowed = [
        policy(f"{sender}-to-{target}", {"matchLabels": {"app.kubernetes.io/component": sender}}, ASK_DNS, to(target))
        for sender, target in (("chief", "worker"), ("worker", "ps"), ("ps", "chief"))
    ]
    assert egress_policies([DENY, *allowed], run()).lacking == ()
    assert egress_policies([DENY, *allowed[:2]], run()).lacking == (DNS, PORT)
