"""Requests of a pod that no node of a cluster could meet, however long it waits."""

from typing import Any

import pytest

from launcher.backend.kubernetes import diagnosis, node_capacity
from tests.golden_messages import Golden

NODES = [
    {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product}},
        "status": {"allocatable": {"nvidia.com/gpu": gpus, "memory": "16Gi"}},
    }
    for name, product, gpus in (("a", "A100", "4"), ("b", "T4", "2"))
]


def pod(gpus: str = "1", memory: str = "1Gi", sidecar: str = "0", **labels: str) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": gpus, "memory": memory}, "requests": {"memory": memory}}
    message = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    selector = {key.replace("_", "."): value for key, value in labels.items()}
    return {
        "spec": {
            "containers": [{"resources": resources}],
            "initContainers": [{"restartPolicy": "Always", "resources": {"requests": {"memory": sidecar}}}],
            "nodeSelector": selector,
        },
        "status": {"phase": "Pending", "conditions": [unscheduled]},
    }


@pytest.mark.parametrize(
    "waiting, nodes, remedy",
    [
        (pod("60"), NODES, "60 of nvidia.com/gpu is asked for, and the most a node offers is 4"),
        (pod(memory="32Gi"), NODES, "32Gi of memory is asked for, and the most a node offers is 16Gi"),
        (pod(memory="12Gi", sidecar="8Gi"), NODES, "20Gi of memory is asked for, and the most a node offers is 16Gi"),
        (
            pod(),
            [{"metadata": {"name": "c"}, "status": {"allocatable": {"memory": "1Gi"}}}],
            "1 of nvidia.com/gpu is asked for, and no node offers any",
        ),
        (pod(disk="ssd"), NODES, "no node has the label disk=ssd"),
        (pod("4"), NODES, "free some, or add nodes"),  # other pods use them now
        (pod("60"), [], "free some, or add nodes"),  # nodes may not be listed
    ],
)
def test_a_request_that_no_node_can_meet_is_named_with_what_nodes_offer(
    waiting: dict[str, Any], nodes: list[dict[str, Any]], remedy: str
) -> None:
    result = diagnosis.diagnose_pod(waiting, (), nodes)
    assert result is not None
    assert result.remedy.startswith(remedy)


def test_only_nodes_with_the_label_count(golden: Golden) -> None:
    t4 = {"nvidia.com/gpu.product": "T4"}
    golden(*node_capacity.unmet_requirements({"nvidia.com/gpu": 4}, t4, NODES))
    golden(*node_capacity.unmet_requirements({}, {"nvidia.com/gpu.product": "H100"}, NODES))
