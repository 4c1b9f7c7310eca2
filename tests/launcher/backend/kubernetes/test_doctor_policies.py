"""Traffic of a run's tasks that NetworkPolicies of a namespace forbid."""

from typing import Any

import pytest

from launcher.backend.kubernetes.doctor_policies import EgressPolicies, egress_policies
from launcher.images import spec_image
from launcher.plan import planner
from launcher.render.kubernetes.network import policies
from launcher.render.kubernetes.objects import Run
from launcher.spec.models import ClusterSpec

DNS, PORT, EXCHANGE = "DNS", "port 2222 of each other", "port 2223 of each other"
OWN = {"podSelector": {"matchLabels": {"tf-launcher/cluster": "digits"}}}
ALLOW_DNS = {
    "to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}],
    "ports": [{"port": 53, "protocol": "UDP"}],
}


def run(strategy: str = "parameter_server", options: dict[str, Any] | None = None, **roles: Any) -> Run:
    roles = roles or {"chief": {}, "ps": {}, "worker": {"replicas": 2}}
    spec = ClusterSpec.model_validate({"version": 1, "name": "digits", "strategy": strategy, "roles": roles, "kubernetes": options or {}})
    return Run(spec, planner.plan(spec, "kubernetes", run_dir="/runs/digits"), spec_image(spec))


def policy(name: str, selector: dict[str, Any], *rules: dict[str, Any], types: tuple[str, ...] = ("Egress",)) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"podSelector": selector, "policyTypes": list(types), "egress": list(rules)}}


DENY = policy("deny", {}, types=("Ingress", "Egress"))


def test_a_policy_that_denies_all_is_named_with_the_traffic_it_blocks() -> None:
    assert egress_policies([DENY], run()) == EgressPolicies(("deny",), (DNS, PORT))
    assert egress_policies([DENY], run("multi_worker_mirrored", worker={"replicas": 2})).lacking == (DNS, PORT, EXCHANGE)
    assert egress_policies([DENY], run("single", chief={})).lacking == (DNS,)


def test_the_run_s_own_policy_allows_the_traffic_its_tasks_need() -> None:
    for strategy in ("parameter_server", "multi_worker_mirrored"):
        restricted = run(
            strategy, options={"egress": "tasks"}, chief={}, worker={"replicas": 2}, **({"ps": {}} if strategy[0] == "p" else {})
        )
        assert egress_policies([DENY, *policies(restricted)], restricted) == EgressPolicies(("deny", "digits"), ())
        # It allows nothing else, neither to other pods nor to the outside.
        (own, *_) = policies(restricted)
        dns, tasks = own["spec"]["egress"]
        assert dns == {"ports": [{"protocol": protocol, "port": port} for port in (53, 5353) for protocol in ("UDP", "TCP")]}
        assert tasks["to"] == [OWN]


def test_policies_for_ingress_or_for_other_pods_block_nothing() -> None:
    other = policy("other", {"matchLabels": {"app": "web"}})
    ingress = policy("ingress", {}, types=("Ingress",))
    assert egress_policies([other, ingress], run()) == EgressPolicies((), ())


@pytest.mark.parametrize(
    "rules, lacking",
    [
        ([{}], ()),
        ([ALLOW_DNS], (PORT,)),
        ([ALLOW_DNS, {"to": [OWN]}], ()),
        ([ALLOW_DNS, {"to": [OWN], "ports": [{"port": 2000, "endPort": 2300}]}], ()),
        ([ALLOW_DNS, {"to": [OWN], "ports": [{"port": 443}]}], (PORT,)),
        ([ALLOW_DNS, {"to": [OWN], "ports": [{"port": 2222, "protocol": "UDP"}]}], (PORT,)),
        ([ALLOW_DNS, {"to": [{"podSelector": {"matchLabels": {"app": "web"}}}]}], (PORT,)),
        ([{"to": [{"podSelector": {}}]}], (DNS,)),
        ([{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}], ()),
    ],
)
def test_traffic_that_another_policy_allows_is_not_lacking(rules: list[dict[str, Any]], lacking: tuple[str, ...]) -> None:
    allow = policy("allow", {"matchExpressions": [{"key": "tf-launcher/cluster", "operator": "Exists"}]}, *rules)
    assert egress_policies([DENY, allow], run()) == EgressPolicies(("deny", "allow"), lacking)


def test_traffic_that_one_role_lacks_is_lacking_for_the_run() -> None:
    allow = policy("allow", {"matchExpressions": [{"key": "app.kubernetes.io/component", "operator": "NotIn", "values": ["ps"]}]}, {})
    assert egress_policies([DENY, allow], run()).lacking == (DNS, PORT)


def test_roles_that_may_reach_the_roles_they_need_lack_nothing() -> None:
    def to(role: str) -> dict[str, Any]:
        return {"to": [{"podSelector": {"matchLabels": {"app.kubernetes.io/component": role}}}]}

    allowed = [
        policy(f"{sender}-to-{target}", {"matchLabels": {"app.kubernetes.io/component": sender}}, ALLOW_DNS, to(target))
        for sender, target in (("chief", "worker"), ("worker", "ps"), ("ps", "chief"))
    ]
    assert egress_policies([DENY, *allowed], run()).lacking == ()
    assert egress_policies([DENY, *allowed[:2]], run()).lacking == (DNS, PORT)
