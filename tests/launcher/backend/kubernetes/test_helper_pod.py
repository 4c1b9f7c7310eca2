"""The node of a pod that reads a run's volume while the run has it."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.helper_pod import FailedPodError, node_constraints, serving
from launcher.backend.kubernetes.run_objects import with_claim_access
from launcher.errors import UsageError
from launcher.images import spec_image
from launcher.plan import planner
from launcher.render.kubernetes.objects import Run
from launcher.spec.models import ClusterSpec
from tests.launcher.backend.kubernetes.objects import ended, running


def run(access: str) -> Run:
    spec = ClusterSpec.model_validate({"version": 1, "name": "digits", "train": {"workload": "mnist"}, "storage": {"access": access}})
    return Run(spec, planner.plan(spec, "kubernetes", run_dir="/runs/digits"), spec_image(spec))


def mounting(pod: dict[str, Any], claim: str = "digits") -> dict[str, Any]:
    pod["spec"]["volumes"] = [{"name": "tmp", "emptyDir": {}}, {"name": "run", "persistentVolumeClaim": {"claimName": claim}}]
    return pod


def test_a_volume_of_one_node_is_read_on_the_node_of_the_pod_that_mounts_it() -> None:
    pods = [running("ps"), mounting(ended("worker", 0), "digits"), mounting(running("evaluator"), "other"), mounting(running("chief"))]
    pods[-1]["spec"]["nodeName"] = "node-7"
    assert '"values": ["node-7"]' in json.dumps(node_constraints(run("ReadWriteOnce"), pods))
    assert node_constraints(run("ReadWriteOnce"), pods[:-1]) == {}
    assert node_constraints(run("ReadWriteMany"), pods) == {}


@pytest.mark.parametrize(
    "claim, access",
    [
        (None, "ReadWriteOnce"),
        ({"metadata": {}, "spec": {"accessModes": ["ReadWriteMany"]}}, "ReadWriteMany"),
        ({"metadata": {}, "spec": {"accessModes": ["ReadWriteOnce", "ReadWriteMany"]}}, "ReadWriteMany"),
        ({"metadata": {"deletionTimestamp": "now"}, "spec": {"accessModes": ["ReadWriteMany"]}}, "ReadWriteOnce"),
    ],
)
def test_an_existing_claim_decides_how_many_nodes_mount_it(claim: dict[str, Any] | None, access: str) -> None:
    cluster = cast("Cluster", SimpleNamespace(get=lambda *_: claim))
    assert with_claim_access(cluster, run("ReadWriteOnce")).access == access


def test_the_taint_of_a_node_with_gpus_is_tolerated() -> None:
    chief = mounting(running("chief"))
    chief["spec"] |= {"nodeName": "node-7", "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]}
    assert node_constraints(run("ReadWriteOnce"), [chief])["tolerations"] == chief["spec"]["tolerations"]


def test_a_volume_of_one_pod_is_not_read_while_a_pod_mounts_it() -> None:
    chief = mounting(running("chief"))
    with pytest.raises(UsageError, match="ReadWriteOncePod, and the pod digits-chief-0-00 has mounted the volume"):
        node_constraints(run("ReadWriteOncePod"), [chief])
    assert node_constraints(run("ReadWriteOncePod"), [running("ps"), mounting(ended("chief", 0))]) == {}


def test_a_pod_that_has_ended_instead_of_serving_is_said_to_have_taken_no_longer_than_it_did() -> None:
    done = {"metadata": {"name": "digits-housekeeping-abc"}, "status": {"phase": "Succeeded"}}
    calls = {"create": lambda _: done, "get": lambda *_: done, "delete": lambda *_, **__: None, "list_objects": lambda *_: []}
    cluster = cast("Cluster", SimpleNamespace(**calls, namespace="team"))
    with (
        pytest.raises(FailedPodError, match="did not succeed: it is Succeeded after 0 s") as failed,
        serving(cluster, run("ReadWriteMany"), [], "reading"),
    ):
        pass
    assert failed.value.remedy == "see kubectl describe pod digits-housekeeping-abc -n team"
