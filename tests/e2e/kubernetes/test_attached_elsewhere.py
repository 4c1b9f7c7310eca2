"""A pod whose volume is attached to another node, by the events of the cluster: status says so, with how long that lasts, until it is attached here."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes.cluster import Namespace, until
from tests.e2e.kubernetes.launching import Launcher

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

FAILED = 'Multi-Attach error for volume "pvc-1" Volume is already exclusively attached to one node and can\'t be attached to another'


def tell(namespace: Namespace, pod: dict[str, Any], reason: str, message: str, at: str) -> None:
    """Make an event as the controller that attaches volumes does."""
    head = pod["metadata"]
    about = {"apiVersion": "v1", "kind": "Pod", "name": head["name"], "namespace": namespace.name, "uid": head["uid"]}
    made = {"apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "attach-"}, "involvedObject": about, "reason": reason}
    made |= {"message": message, "type": "Warning" if reason.startswith("Failed") else "Normal", "firstTimestamp": at, "lastTimestamp": at}
    namespace.kubectl("create", "-f", "-", text=json.dumps(made))


def test_a_volume_that_a_lost_node_still_has_is_named_until_it_is_attached(
    namespace: Namespace, launcher: Launcher, image: str, tmp_path: Path
) -> None:
    # Its pod is on a node and does not start: a ConfigMap stands in for the disk, which this cluster need not have.
    lacking = "volumes: [{name: disk, source: {configMap: {name: not-there}}, mount_path: /disk}]\n"
    (tmp_path / "held.yaml").write_text(
        f"version: 1\nname: held\nimage: {image}\nsupervise: false\ncommand: [python, -c, 'pass']\nlimits: {{grace_period: 1s}}\n{lacking}"
    )
    launcher("up", str(tmp_path / "held.yaml"), "--detach")

    def placed() -> bool:
        return any(pod["spec"].get("nodeName") for pod in namespace.pods("held"))

    until(placed, 60, "the pod to have a node", lambda: namespace.describe("held"))
    (pod,) = namespace.pods("held")

    def told() -> str:
        return str(launcher.status("held")["reason"])

    tell(namespace, pod, "FailedAttachVolume", FAILED, "2036-01-01T00:00:00Z")
    until(lambda: "its volume is still attached to a node without pods of the run" in told(), 60, "the volume to be named", told)
    assert "Kubernetes detaches it some six minutes after it has lost a node" in told()
    tell(namespace, pod, "SuccessfulAttachVolume", 'AttachVolume.Attach succeeded for volume "pvc-1"', "2036-01-01T00:00:30Z")
    until(lambda: "still attached" not in told(), 60, "what is next to be told", told)
    launcher("down", "held", "--now")
