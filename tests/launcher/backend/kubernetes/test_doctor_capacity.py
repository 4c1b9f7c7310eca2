"""Whether a spec's tasks find a place on what nodes have left."""

from typing import Any

import pytest

from launcher.backend.kubernetes.doctor_capacity import Node, node, subtract_requests, unschedulable_roles
from launcher.backend.kubernetes.node_capacity import parse_quantity
from launcher.spec.models import ClusterSpec
from tests.golden_messages import Golden


def a_node(name: str, *, gpus: str = "0", product: str = "A100", cpu: str = "8") -> dict[str, Any]:
    offered = {"cpu": cpu, "memory": "16Gi", "pods": "110", "nvidia.com/gpu": gpus}
    return {"metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product}}, "status": {"allocatable": offered}}


def spec(**roles: Any) -> ClusterSpec:
    return ClusterSpec.model_validate({"version": 1, "name": "digits", "strategy": "parameter_server", "roles": roles})


@pytest.mark.parametrize(
    "quantity, number", [("500m", 0.5), ("4", 4.0), ("4Gi", 4 * 2**30), ("1e3", 1000.0), ("2k", 2000.0), ("what", 0.0), (None, 0.0)]
)
def test_quantities_are_read_as_kubernetes_writes_them(quantity: object, number: float) -> None:
    assert parse_quantity(quantity) == number


def test_tasks_that_fit_one_by_one_and_not_together_are_named() -> None:
    nodes = [node(a_node("a", gpus="2")), node(a_node("b", gpus="1"))]
    asked = spec(chief={}, ps={}, worker={"replicas": 4, "gpus": 1})
    assert unschedulable_roles(nodes, asked) == ["1 worker"]


def test_what_other_pods_have_is_not_free() -> None:
    nodes = [node(a_node("a"))]
    container = {"resources": {"requests": {"cpu": "6"}}}
    running = {"spec": {"nodeName": "a", "containers": [container]}, "status": {"phase": "Running"}}
    ended = {"spec": {"nodeName": "a", "containers": [container]}, "status": {"phase": "Succeeded"}}
    subtract_requests(nodes, [running, ended])
    assert nodes[0].free["cpu"] == 2
    assert unschedulable_roles(nodes, spec(chief={"cpu": 3}, ps={}, worker={})) == ["1 chief"]


TAINT = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    "tolerations, left",
    [
        ([], ["1 chief"]),
        ([{"key": "dedicated", "value": "ml"}], []),
        ([{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}], []),
        ([{"operator": "Exists"}], []),
        ([{"key": "dedicated", "value": "other"}], ["1 chief"]),
        ([{"key": "dedicated", "value": "ml", "effect": "NoExecute"}], ["1 chief"]),
    ],
)
def test_a_taint_keeps_off_who_does_not_tolerate_it(tolerations: list[dict[str, str]], left: list[str]) -> None:
    tainted = a_node("a") | {"spec": {"taints": [TAINT, {"key": "soft", "effect": "PreferNoSchedule"}]}}
    asked = {"version": 1, "name": "digits", "kubernetes": {"tolerations": tolerations}}
    assert unschedulable_roles([node(tainted)], ClusterSpec.model_validate(asked)) == left


def test_a_gpus_own_taint_is_tolerated_by_tasks_with_gpus_alone() -> None:
    own = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    nodes = [node(a_node("a", gpus="2") | {"spec": {"taints": [own]}})]
    assert unschedulable_roles(nodes, spec(chief={}, ps={}, worker={"gpus": 1})) == ["1 chief", "1 ps"]


def test_a_gpu_of_another_type_does_not_do() -> None:
    nodes = [node(a_node("a", gpus="8"))]
    asked = spec(chief={}, ps={}, worker={"gpus": 1, "gpu_type": "NVIDIA-H100-80GB-HBM3"})
    assert unschedulable_roles(nodes, asked) == ["1 worker"]
    assert unschedulable_roles([Node("none", {})], asked) == ["1 worker", "1 chief", "1 ps"]


@pytest.mark.parametrize("beside, left", [("sidecars", ["1 chief"]), ("init_containers", [])])
def test_sidecars_take_beside_their_task_and_init_containers_before_it(beside: str, left: list[str]) -> None:
    one = [{"name": "one", "image": "one:1", "cpu": 5, "memory": "1Gi"}]
    assert unschedulable_roles([node(a_node("a"))], spec(chief={"cpu": 4, beside: one}, ps={}, worker={})) == left


def test_tasks_that_a_volume_ties_have_to_fit_on_one_node(golden: Golden) -> None:
    asked = spec(chief={"cpu": 5}, evaluator={"cpu": 5}, ps={"cpu": 1}, worker={"cpu": 2})
    apart, tied = ([node(a_node("a")), node(a_node("b"))] for _ in range(2))
    assert unschedulable_roles(apart, asked) == []
    golden(*unschedulable_roles(tied, asked, ("chief", "evaluator")))
    assert unschedulable_roles([node(a_node("a", cpu="10")), node(a_node("b"))], asked, ("chief", "evaluator")) == []
