"""A pod whose volume is attached to another node, by the events of the cluster: status reports it, and for how long, until the volume is attached."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes.cluster import Namespace, until
from tests.e2e.kubernetes.launching import Launcher

pytestmark = pytest.mark.kubernetes

FAILED = 'Multi-Attach error for volume "pvc-1" Volume is already exclusively attached to one node and can\'t be attached to another'


def record_event(namespace: Namespace, pod: dict[str, Any], reason: str, message: str, at: str) -> None:
    """Record an event of a pod, as the controller that attaches volumes does."""
    metadata = pod["metadata"]
    involved = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "namespace": namespace.name, "uid": metadata["uid"]}
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "attach-"}, "involvedObject": involved, "reason": reason}
    event |= {"message": message, "type": "Warning" if reason.startswith("Failed") else "Normal", "firstTimestamp": at, "lastTimestamp": at}
    namespace.kubectl("create", "-f", "-", text=json.dumps(event))


def test_a_volume_that_a_lost_node_still_has_is_named_until_it_is_attached(
    namespace: Namespace, launcher: Launcher, image: str, tmp_path: Path
) -> None:
    # Its pod is on a node and does not start: a missing ConfigMap replaces a disk, which this cluster need not have.
    volumes = "volumes: [{name: disk, source: {configMap: {name: not-there}}, mount_path: /disk}]\n"
    (tmp_path / "held.yaml").write_text(
        f"version: 1\nname: held\nimage: {image}\nsupervise: false\ncommand: [python, -c, 'pass']\nlimits: {{grace_period: 1s}}\n{volumes}"
    )
    launcher("up", str(tmp_path / "held.yaml"), "--detach")

    def is_scheduled() -> bool:
        return any(pod["spec"].get("nodeName") for pod in namespace.pods("held"))

    until(is_scheduled, 60, "the pod to have a node", lambda: namespace.describe("held"))
    (pod,) = namespace.pods("held")

    def reason() -> str:
        return str(launcher.status("held")["reason"])

    record_event(namespace, pod, "FailedAttachVolume", FAILED, "2036-01-01T00:00:00Z")
    until(lambda: "its volume is still attached to a node without pods of the run" in reason(), 60, "the volume to be named", reason)
    assert "Kubernetes detaches it some six minutes after it has lost a node" in reason()
    record_event(namespace, pod, "SuccessfulAttachVolume", 'AttachVolume.Attach succeeded for volume "pvc-1"', "2036-01-01T00:00:30Z")
    until(lambda: "still attached" not in reason(), 60, "another reason", reason)
    launcher("down", "held", "--now")
