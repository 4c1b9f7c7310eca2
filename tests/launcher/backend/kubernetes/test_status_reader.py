"""The pods that decide the status of a run, and the order in which those of a lost node are marked as failed."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from launcher.backend.kubernetes import pod_status, status_reader
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.reconcile import lost_pods
from launcher.errors import LauncherError
from tests.golden_messages import Golden
from tests.launcher.backend.kubernetes import objects
from tests.launcher.backend.kubernetes.objects import NOW


def pod(component: str, *labels: str, deleted: bool = False) -> dict[str, Any]:
    """Return a pod with some labels of the run's; one that is deleted is on a node that does not answer."""
    component_label = {"app.kubernetes.io/component": component}
    deletion = {"deletionTimestamp": "2026-01-01T00:09:00Z", "deletionGracePeriodSeconds": 30} if deleted else {}
    ready = {"type": "Ready", "status": "False", "reason": "NodeNotReady"} if deleted else {"type": "Ready", "status": "True"}
    return {
        "metadata": {"name": component, "labels": component_label | dict.fromkeys(labels, "digits"), **deletion},
        "spec": {"nodeName": "node-1" if deleted else "node-2"},
        "status": {"phase": "Running", "conditions": [ready]},
    }


def names(pods: list[dict[str, Any]]) -> list[str]:
    return [one["metadata"]["name"] for one in pods]


def test_a_pod_that_ties_the_chief_to_a_lost_node_is_marked_as_failed_before_it() -> None:
    chief = pod("chief", "tf-launcher/cluster", "tf-launcher/volume", deleted=True)
    tensorboard = pod("tensorboard", "tf-launcher/volume", deleted=True)
    relevant = status_reader.relevant_pods([chief, pod("worker", "tf-launcher/cluster"), tensorboard, pod("housekeeping")])
    assert names(relevant) == ["chief", "worker", "tensorboard"]
    assert names([dict(one) for one in lost_pods(relevant, NOW, 60)]) == ["tensorboard", "chief"]


def test_a_tensorboard_that_ties_no_pod_is_left_to_kubernetes() -> None:
    ended = pod("tensorboard", "tf-launcher/volume", deleted=True)
    ended["status"]["phase"] = "Failed"
    assert status_reader.relevant_pods([pod("tensorboard", "tf-launcher/volume"), pod("tensorboard", deleted=True), ended]) == []


def test_the_controller_of_jobs_is_known() -> None:
    record = {"kind": "ConfigMap", "name": "digits-record"}
    ours = {"metadata": {"ownerReferences": [record]}}
    owned = {"metadata": {"ownerReferences": [{"kind": "JobSet", "name": "digits", "controller": True}]}}
    assert pod_status.controller_of([ours, {"metadata": {}}]) is None
    assert pod_status.controller_of([ours, owned]) == "jobset/digits"


class LosingNode:
    """A cluster that notices that a pod's node is silent while the pod's log is being read."""

    def __init__(self) -> None:
        self.pod = objects.running("chief")
        self.pod["metadata"]["labels"]["tf-launcher/cluster"] = "digits"
        self.is_unreachable = False

    def list_objects(self, kind: str, _labels: Mapping[str, str] | None = None, **_: Any) -> list[dict[str, Any]]:
        if self.is_unreachable:
            raise LauncherError("the cluster does not answer")
        return {"Job": [objects.job("chief")], "Pod": [self.pod]}.get(kind, [])

    def list_with_version(self, kind: str, labels: Mapping[str, str]) -> tuple[list[dict[str, Any]], str]:
        return self.list_objects(kind, labels), "1"

    def watch(self, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        return iter(())

    def get(self, *_: str) -> None:
        return None

    def description(self) -> str:
        return ""

    def now(self) -> float:
        return NOW

    def log(self, *_: Any, **__: Any) -> bytes:
        conditions = [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]
        self.pod = {**self.pod, "status": {**self.pod["status"], "conditions": conditions}}
        raise LauncherError("no answer")


def test_a_status_that_waited_for_a_lost_node_is_read_from_the_cluster_again(golden: Golden) -> None:
    status = status_reader.StatusReader(cast("Cluster", LosingNode()), "digits").status()
    assert status is not None
    golden(*[task.reason for task in status.tasks])


def test_the_first_snapshot_is_used_if_the_cluster_cannot_be_read_again() -> None:
    class BecomingUnreachable(LosingNode):
        def log(self, *_: Any, **__: Any) -> bytes:
            self.is_unreachable = True
            raise LauncherError("no answer")

    status = status_reader.StatusReader(cast("Cluster", BecomingUnreachable()), "digits").status()
    assert status is not None
    assert [task.reason for task in status.tasks] == [""]
