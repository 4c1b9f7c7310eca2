"""Whether a spec's tasks fit on the free resources of nodes."""

from typing import Any

import pytest

from launcher.backend.kubernetes.doctor_capacity import Node, empty_node, subtract_requests, unschedulable_roles
from launcher.spec.models import ClusterSpec
from launcher.spec.quantities import parse_quantity
from tests.golden_messages import Golden


def api_node(name: str, *, gpus: str = "0", product: str = "A100", cpu: str = "8") -> dict[str, Any]:
    offered = {"cpu": cpu, "memory": "16Gi", "pods": "110", "nvidia.com/gpu": gpus}
    return {"metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product}}, "status": {"allocatable": offered}}


def spec(**roles: Any) -> ClusterSpec:
    return ClusterSpec.model_validate({"version": 1, "name": "digits", "strategy": "parameter_server", "roles": roles})


@pytest.mark.parametrize(
    "quantity, number", [("500m", 0.5), ("4", 4.0), ("4Gi", 4 * 2**30), ("1e3", 1000.0), ("2k", 2000.0), ("what", 0.0), (None, 0.0)]
)
def test_quantities_are_read_as_kubernetes_writes_them(quantity: object, number: float) -> None:
    assert parse_quantity(quantity) == number


def test_tasks_that_fit_one_by_one_but_not_together_are_named() -> None:
    nodes = [empty_node(api_node("a", gpus="2")), empty_node(api_node("b", gpus="1"))]
    cluster_spec = spec(chief={}, ps={}, worker={"replicas": 4, "gpus": 1})
    assert unschedulable_roles(nodes, cluster_spec) == ["1 worker"]


def requesting(cpu: str, **fields: str) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}}, **fields}


@pytest.mark.parametrize(
    "containers",
    [
        {"containers": [requesting("6")]},
        {"containers": [requesting("1")], "initContainers": [requesting("5", restartPolicy="Always"), requesting("2")]},
        {"containers": [requesting("1")], "initContainers": [requesting("6")]},
    ],
    ids=["containers", "sidecar", "init container"],
)
def test_requests_of_other_pods_are_not_free(containers: dict[str, Any]) -> None:
    nodes = [empty_node(api_node("a"))]
    running = {"spec": {"nodeName": "a", **containers}, "status": {"phase": "Running"}}
    ended = {"spec": {"nodeName": "a", **containers}, "status": {"phase": "Succeeded"}}
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
def test_a_taint_excludes_tasks_that_do_not_tolerate_it(tolerations: list[dict[str, str]], left: list[str]) -> None:
    tainted = api_node("a") | {"spec": {"taints": [TAINT, {"key": "soft", "effect": "PreferNoSchedule"}]}}
    fields = {"version": 1, "name": "digits", "kubernetes": {"tolerations": tolerations}}
    assert unschedulable_roles([empty_node(tainted)], ClusterSpec.model_validate(fields)) == left


def test_only_tasks_with_gpus_tolerate_the_taint_of_gpus() -> None:
    own = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    nodes = [empty_node(api_node("a", gpus="2") | {"spec": {"taints": [own]}})]
    assert unschedulable_roles(nodes, spec(chief={}, ps={}, worker={"gpus": 1})) == ["1 chief", "1 ps"]


def test_a_gpu_of_another_type_does_not_meet_a_request() -> None:
    nodes = [empty_node(api_node("a", gpus="8"))]
    cluster_spec = spec(chief={}, ps={}, worker={"gpus": 1, "gpu_type": "NVIDIA-H100-80GB-HBM3"})
    assert unschedulable_roles(nodes, cluster_spec) == ["1 worker"]
    assert unschedulable_roles([Node("none", {})], cluster_spec) == ["1 worker", "1 chief", "1 ps"]


@pytest.mark.parametrize("kind, left", [("sidecars", ["1 chief"]), ("init_containers", [])])
def test_requests_of_sidecars_add_to_their_task_s_and_those_of_init_containers_do_not(kind: str, left: list[str]) -> None:
    containers = [{"name": "one", "image": "one:1", "cpu": 5, "memory": "1Gi"}]
    assert unschedulable_roles([empty_node(api_node("a"))], spec(chief={"cpu": 4, kind: containers}, ps={}, worker={})) == left


def test_tasks_that_a_volume_ties_have_to_fit_on_one_node(golden: Golden) -> None:
    cluster_spec = spec(chief={"cpu": 5}, evaluator={"cpu": 5}, ps={"cpu": 1}, worker={"cpu": 2})
    apart, tied = ([empty_node(api_node("a")), empty_node(api_node("b"))] for _ in range(2))
    assert unschedulable_roles(apart, cluster_spec) == []
    golden(*unschedulable_roles(tied, cluster_spec, ("chief", "evaluator")))
    assert unschedulable_roles([empty_node(api_node("a", cpu="10")), empty_node(api_node("b"))], cluster_spec, ("chief", "evaluator")) == []
