"""Why a pod waits that has to be where the run's volume is: the node is named, and what frees it."""

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import pod_status, port_forward
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.pod_status import ClusterSnapshot
from launcher.errors import LauncherError, UsageError
from launcher.render.kubernetes.objects import VOLUME_LABEL
from launcher.runs.status import TaskStatus
from tests.golden_messages import Golden
from tests.launcher.backend.kubernetes.objects import COMPLETE, NOW, ended, event, job, pod, running

# As the scheduler of Kubernetes 1.34 writes it, and that of 1.33.
OTHERS = "0/4 nodes are available: 1 node(s) had untolerated taint(s), 3 node(s) didn't match PersistentVolume's node affinity."
BEFORE = "0/4 nodes are available: 1 node(s) were unschedulable, 3 node(s) had volume node affinity conflict. preemption: 0/4"
BESIDE = "0/4 nodes are available: 1 Insufficient cpu, 3 node(s) didn't match pod affinity rules."
# As the controller that attaches volumes writes it.
EXCLUSIVE = 'Multi-Attach error for volume "{}" Volume is already exclusively attached to one node and can\'t be attached to another'
SUCCEEDED = 'AttachVolume.Attach succeeded for volume "{}"'
LOCAL_PATH = "rancher.io/local-path"


def claim(provisioner: str = LOCAL_PATH) -> dict[str, Any]:
    notes = {"volume.kubernetes.io/selected-node": "node-3", "volume.kubernetes.io/storage-provisioner": provisioner}
    return {"metadata": {"name": "digits", "uid": "c", "annotations": notes}, "status": {"phase": "Bound"}}


def mounting(one: dict[str, Any], node: str = "", **status: Any) -> dict[str, Any]:
    one["metadata"]["labels"][VOLUME_LABEL] = "digits"
    one["spec"] |= {"nodeName": node, "volumes": [{"name": "run", "persistentVolumeClaim": {"claimName": "digits"}}]}
    one["status"] |= status
    return one


def waiting(role: str, message: str = "", node: str = "") -> dict[str, Any]:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return mounting(pod(role, 0, "Pending", "2026-01-01T00:09:00Z"), node, conditions=[unscheduled] if message else [])


def told(*pods: dict[str, Any], events: tuple[dict[str, Any], ...] = (), provisioner: str = LOCAL_PATH) -> TaskStatus:
    """Return how the last pod's task is."""
    jobs = [job(role) for role in dict.fromkeys(one["metadata"]["labels"]["app.kubernetes.io/component"] for one in pods)]
    seen = ClusterSnapshot("digits", jobs, pods, [claim(provisioner)], events)
    role = pods[-1]["metadata"]["labels"]["app.kubernetes.io/component"]
    return next(task for task in pod_status.status(seen, NOW).tasks if task.name == role)


def lost(role: str, node: str) -> dict[str, Any]:
    """Return a pod that was deleted with its node."""
    return mounting(pod(role, 0, "Failed"), node, reason="NodeLost")


def test_a_volume_of_a_lost_node_is_told_with_what_becomes_of_it(golden: Golden) -> None:
    task = told(lost("chief", "node-3"), waiting("chief", OTHERS))
    golden(task.reason)
    assert "bring the node back" in task.remedy
    assert "launcher down --delete-data" in task.remedy


def test_a_volume_of_a_node_that_takes_no_pods_is_told() -> None:
    task = told(waiting("chief", BEFORE))
    assert "its volume is on the node node-3, which does not take it: 0/4 nodes: 1 node(s) were unschedulable" in task.reason
    assert "kubectl describe node node-3" in task.remedy


@pytest.mark.parametrize("provisioner", ["ebs.csi.aws.com", "pd.csi.storage.gke.io", "disk.csi.azure.com"])
def test_a_disk_is_of_a_zone_and_outlives_the_node_it_was_made_for(provisioner: str) -> None:
    task = told(lost("chief", "node-3"), waiting("chief", BEFORE), provisioner=provisioner)
    assert (
        "its volume is in the zone of the node node-3, where it was created, and no node there takes it: 0/4 nodes: 1 node(s)"
        in task.reason
    )
    assert "another node of that zone will do" in task.remedy
    assert "--delete-data" not in task.remedy


def test_an_evaluator_waits_for_the_chief_and_for_room_on_its_node(golden: Golden) -> None:
    alone = "0/4 nodes are available: 4 node(s) didn't match pod affinity rules."
    golden(told(waiting("evaluator", alone)).reason)
    task = told(mounting(running("chief"), "node-2"), waiting("evaluator", BESIDE))
    assert "ties it to the node node-2, which does not take it: 0/4 nodes: 1 insufficient cpu" in task.reason
    assert "ReadWriteMany" in task.remedy


def test_a_pod_that_holds_others_to_a_lost_node_is_named_with_the_command_that_frees_them() -> None:
    tensorboard = mounting(running("tensorboard"), "node-3", conditions=[{"type": "Ready", "status": "False", "reason": "NodeNotReady"}])
    tensorboard["metadata"]["deletionTimestamp"] = "2026-01-01T00:08:00Z"
    seen = ClusterSnapshot("digits", [job("chief")], [tensorboard, waiting("chief", BESIDE)], [claim()])
    (task,) = pod_status.status(seen, NOW).tasks
    assert "ties it to the node node-3, which is lost: the pod digits-tensorboard-0-00 still counts there" in task.reason
    assert 'kubectl patch pod digits-tensorboard-0-00 --subresource=status --type=merge -p \'{"status":{"phase":"Failed"}}\'' in task.remedy


def test_a_volume_that_is_still_attached_elsewhere_is_told_with_the_node(golden: Golden) -> None:
    new = waiting("chief", node="node-1")
    warning = event("FailedAttachVolume", EXCLUSIVE.format("pvc-1"), "2026-01-01T00:09:01Z", uid=new["metadata"]["uid"]) | {
        "type": "Warning"
    }
    task = told(lost("chief", "node-3"), new, events=(warning,))
    golden(task.reason)
    assert "kubectl taint node node-3 node.kubernetes.io/out-of-service" in task.remedy
    held = told(mounting(running("evaluator"), "node-2"), new, events=(warning,))
    golden(held.reason)
    gone = told(new, events=(warning,))  # the pod that used it is there no more
    golden(gone.reason)
    assert "kubectl get volumeattachments names the node" in gone.remedy
    attached = event("SuccessfulAttachVolume", SUCCEEDED.format("pvc-1"), "2026-01-01T00:09:31Z", uid=new["metadata"]["uid"])
    assert told(new, events=(warning, attached)).reason == ""
    assert told(new, events=(attached, warning | {"lastTimestamp": "2026-01-01T00:09:40Z"})).reason == gone.reason


def test_of_two_volumes_each_is_told_by_what_was_said_of_it() -> None:
    new = waiting("chief", node="node-1")
    new["spec"]["volumes"].append({"name": "data", "persistentVolumeClaim": {"claimName": "pictures"}})
    bound = [claim() | {"spec": {"volumeName": "pvc-1"}}, {"metadata": {"name": "pictures"}, "spec": {"volumeName": "pvc-2"}}]

    def said(reason: str, message: str, second: int) -> dict[str, Any]:
        kind = {"type": "Warning" if reason.startswith("Failed") else "Normal"}
        return event(reason, message, f"2026-01-01T00:09:0{second}Z", uid=new["metadata"]["uid"]) | kind

    def reason(*events: dict[str, Any]) -> str:
        pods = [lost("chief", "node-3"), new]
        (task,) = pod_status.status(ClusterSnapshot("digits", [job("chief")], pods, bound, events), NOW).tasks
        return task.reason

    mine = said("FailedAttachVolume", EXCLUSIVE.format("pvc-1"), 1)
    others = said("FailedAttachVolume", 'Multi-Attach error for volume "pvc-2" Volume is already used by pod(s) reader', 2)
    first, second = "its volume digits is still attached to the node node-3", "its volume pictures is in use on another node, by reader"
    assert reason(mine, others) == f"1m: {first}, which is lost; {second}"
    assert reason(mine, others, said("SuccessfulAttachVolume", SUCCEEDED.format("pvc-2"), 3)) == f"1m: {first}, which is lost"
    assert reason(mine, others, said("SuccessfulAttachVolume", SUCCEEDED.format("pvc-1"), 3)) == f"1m: {second}"


def test_a_volume_that_another_pod_uses_is_told_with_that(golden: Golden) -> None:
    new = waiting("chief", node="node-1")
    said = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) reader'
    warning = event("FailedAttachVolume", said, "2026-01-01T00:09:01Z", uid=new["metadata"]["uid"]) | {"type": "Warning"}
    golden(told(new, events=(warning,)).reason)


READY = {"type": "Ready", "status": "True"}
ALONE = "0/4 nodes are available: 4 node(s) didn't match pod affinity rules."


@pytest.mark.parametrize(
    "tensorboards, remedy",
    [
        ([waiting("tensorboard", ALONE)], "launcher tensorboard digits lets TensorBoard go to the volume, and this task follows it"),
        ([], "launcher down digits, and launcher up again"),
    ],
)
def test_an_evaluator_that_was_drained_after_the_chief_s_end_has_a_way_on(
    tensorboards: list[dict[str, Any]], remedy: str, golden: Golden
) -> None:
    pods = [mounting(ended("chief", 0), "node-2"), *tensorboards, waiting("evaluator", ALONE)]
    seen = ClusterSnapshot("digits", [job("chief", 1, COMPLETE), job("evaluator")], pods, [claim()])
    task = next(task for task in pod_status.status(seen, NOW).tasks if task.name == "evaluator")
    golden(task.reason)
    assert remedy in task.remedy


@pytest.mark.parametrize(
    "chief, conditions, freed",
    [
        (mounting(ended("chief", 0), "node-2"), [COMPLETE], True),
        (mounting(running("chief"), "node-2"), [], False),
        (waiting("chief", "0/4 nodes are available: 4 Insufficient cpu."), [], False),
        (None, [], False),  # its Job waits in a queue
    ],
)
def test_tensorboard_and_an_evaluator_that_wait_for_each_other_are_let_go_once_the_chief_has_ended(
    chief: dict[str, Any] | None, conditions: list[dict[str, str]], freed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = [one for one in (chief, waiting("tensorboard", ALONE), waiting("evaluator", ALONE)) if one]
    jobs = [job("chief", 1, *conditions), job("evaluator")]
    patched: list[str] = []

    def patch(_: str, name: str, __: object) -> None:
        patched.append(name)
        pods[:] = [mounting(running("tensorboard"), "node-1", conditions=[READY])]

    with contextlib.nullcontext() if freed else pytest.raises(LauncherError, match="TensorBoard of digits is not ready: "):
        await_tensorboard({"Pod": lambda: pods, "Job": lambda: jobs}, patch)
    assert patched == (["digits-tensorboard"] if freed else [])
    assert ("TensorBoard of digits moves to a node where its volume can be used" in capsys.readouterr().err) == freed


def await_tensorboard(
    listed: dict[str, Callable[[], list[dict[str, Any]]]], patch: Callable[..., None], tensorboard: object = None
) -> None:
    """Wait for the TensorBoard of a cluster that lists this, and has `tensorboard` as its Deployment."""
    cluster = SimpleNamespace(
        listed=lambda kind, _: list(listed[kind]()), patch=patch, get=lambda *_: tensorboard, description=lambda: "mine"
    )
    port_forward.await_tensorboard(cast("Cluster", cluster), "digits")


def test_a_tensorboard_that_was_just_replaced_is_waited_for_until_it_is_known_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """Its Deployment has made no pod yet, then the scheduler has not looked at it yet."""
    ready = mounting(running("tensorboard"), "node-1", conditions=[READY])
    reads = mounting(running("housekeeping"), "node-2")  # as the pod does by which `launcher get` reads the volume, for a moment more
    times = [[], [waiting("tensorboard")], [waiting("tensorboard", ALONE)], [waiting("tensorboard")], [ready]]
    monkeypatch.setattr("time.sleep", lambda _: times.pop(0))
    patched: list[str] = []
    chief = mounting(ended("chief", 0), "node-2")
    listed = {"Pod": lambda: [chief, reads, *times[0]], "Job": lambda: [job("chief", 1, COMPLETE)]}
    await_tensorboard(listed, lambda _, name, __: patched.append(name), tensorboard={"status": {}})
    assert patched == ["digits-tensorboard"]
    golden(*[line.split(" of digits ")[1] for line in capsys.readouterr().err.splitlines()])


def test_a_tensorboard_that_gets_no_pod_says_why_and_one_that_is_not_there_is_not_waited_for() -> None:
    refused = {"type": "ReplicaFailure", "status": "True", "message": 'pods "digits-tensorboard-1" is forbidden: exceeded quota: q'}
    listed: dict[str, Callable[[], list[dict[str, Any]]]] = {"Pod": list, "Job": list}
    with pytest.raises(LauncherError, match=r"TensorBoard of digits gets no pod: pods .* exceeded quota: q"):
        await_tensorboard(listed, pytest.fail, tensorboard={"status": {"conditions": [refused]}})
    with pytest.raises(UsageError, match="digits has no TensorBoard in mine"):
        await_tensorboard(listed, pytest.fail)
