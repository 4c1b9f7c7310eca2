"""Why a pod waits that has to run where the run's volume is: the reason names the node, the remedy how to free it."""

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import pod_status, port_forward
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.pod_status import RunSnapshot
from launcher.errors import LauncherError, UsageError
from launcher.render.kubernetes.objects import VOLUME_LABEL
from launcher.runs.status import TaskStatus
from tests.golden_messages import Golden
from tests.launcher.backend.kubernetes.objects import COMPLETE, NOW, ended, event, job, pod, running

# As the schedulers of Kubernetes 1.34 and of 1.33 word it.
CONFLICT_1_34 = "0/4 nodes are available: 1 node(s) had untolerated taint(s), 3 node(s) didn't match PersistentVolume's node affinity."
CONFLICT_1_33 = "0/4 nodes are available: 1 node(s) were unschedulable, 3 node(s) had volume node affinity conflict. preemption: 0/4"
NO_ROOM = "0/4 nodes are available: 1 Insufficient cpu, 3 node(s) didn't match pod affinity rules."
NO_AFFINITY = "0/4 nodes are available: 4 node(s) didn't match pod affinity rules."
# As the controller that attaches volumes words it.
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


def task_status(*pods: dict[str, Any], events: tuple[dict[str, Any], ...] = (), provisioner: str = LOCAL_PATH) -> TaskStatus:
    """Return the status of the last pod's task."""
    jobs = [job(role) for role in dict.fromkeys(one["metadata"]["labels"]["app.kubernetes.io/component"] for one in pods)]
    snapshot = RunSnapshot("digits", jobs, pods, [claim(provisioner)], events)
    role = pods[-1]["metadata"]["labels"]["app.kubernetes.io/component"]
    return next(task for task in pod_status.status(snapshot, NOW).tasks if task.name == role)


def lost(role: str, node: str) -> dict[str, Any]:
    """Return a pod that was deleted with its node."""
    return mounting(pod(role, 0, "Failed"), node, reason="NodeLost")


def attach_event(new: dict[str, Any], reason: str, message: str, second: int) -> dict[str, Any]:
    """Return an event about a volume of a new pod, in a second of the minute after its creation."""
    kind = {"type": "Warning" if reason.startswith("Failed") else "Normal"}
    return event(reason, message, f"2026-01-01T00:09:{second:02}Z", uid=new["metadata"]["uid"]) | kind


def test_a_volume_of_a_lost_node_is_named_with_what_will_happen_to_it(golden: Golden) -> None:
    task = task_status(lost("chief", "node-3"), waiting("chief", CONFLICT_1_34))
    golden(task.reason)
    assert "bring the node back" in task.remedy
    assert "launcher down --delete-data" in task.remedy


def test_a_volume_of_a_node_that_takes_no_pods_is_named_with_the_node() -> None:
    task = task_status(waiting("chief", CONFLICT_1_33))
    assert "its volume is on the node node-3, which does not take it: 0/4 nodes: 1 node(s) were unschedulable" in task.reason
    assert "kubectl describe node node-3" in task.remedy


@pytest.mark.parametrize("provisioner", ["ebs.csi.aws.com", "pd.csi.storage.gke.io", "disk.csi.azure.com"])
def test_a_disk_belongs_to_a_zone_and_outlives_the_node_it_was_created_for(provisioner: str) -> None:
    task = task_status(lost("chief", "node-3"), waiting("chief", CONFLICT_1_33), provisioner=provisioner)
    assert (
        "its volume is in the zone of the node node-3, where it was created, and no node there takes it: 0/4 nodes: 1 node(s)"
        in task.reason
    )
    assert "add a node to that zone" in task.remedy
    assert "--delete-data" not in task.remedy


def test_an_evaluator_waits_for_the_chief_and_for_room_on_its_node(golden: Golden) -> None:
    golden(task_status(waiting("evaluator", NO_AFFINITY)).reason)
    task = task_status(mounting(running("chief"), "node-2"), waiting("evaluator", NO_ROOM))
    assert "ties it to the node node-2, which does not take it: 0/4 nodes: 1 insufficient cpu" in task.reason
    assert "ReadWriteMany" in task.remedy


def test_a_pod_that_ties_others_to_a_lost_node_is_named_with_the_command_that_frees_them() -> None:
    tensorboard = mounting(running("tensorboard"), "node-3", conditions=[{"type": "Ready", "status": "False", "reason": "NodeNotReady"}])
    tensorboard["metadata"] |= {"deletionTimestamp": "2026-01-01T00:08:00Z", "namespace": "team"}
    snapshot = RunSnapshot("digits", [job("chief")], [tensorboard, waiting("chief", NO_ROOM)], [claim()])
    (task,) = pod_status.status(snapshot, NOW).tasks
    assert "ties it to the node node-3, which is lost: the pod digits-tensorboard-0-00 still counts there" in task.reason
    assert (
        'kubectl patch pod digits-tensorboard-0-00 -n team --subresource=status --type=merge -p \'{"status":{"phase":"Failed"}}\''
        in task.remedy
    )


def test_a_volume_that_is_still_attached_to_another_node_is_named_with_that_node(golden: Golden) -> None:
    new = waiting("chief", node="node-1")
    warning = attach_event(new, "FailedAttachVolume", EXCLUSIVE.format("pvc-1"), 1)
    task = task_status(lost("chief", "node-3"), new, events=(warning,))
    golden(task.reason)
    assert "kubectl taint node node-3 node.kubernetes.io/out-of-service" in task.remedy
    in_use = task_status(mounting(running("evaluator"), "node-2"), new, events=(warning,))
    golden(in_use.reason)
    unknown = task_status(new, events=(warning,))  # the pod that used it is deleted
    golden(unknown.reason)
    assert "kubectl get volumeattachments names the node" in unknown.remedy
    attached = attach_event(new, "SuccessfulAttachVolume", SUCCEEDED.format("pvc-1"), 31)
    assert task_status(new, events=(warning, attached)).reason == ""
    assert task_status(new, events=(attached, warning | {"lastTimestamp": "2026-01-01T00:09:40Z"})).reason == unknown.reason


def test_the_reason_has_the_events_of_each_of_two_volumes() -> None:
    new = waiting("chief", node="node-1")
    new["spec"]["volumes"].append({"name": "data", "persistentVolumeClaim": {"claimName": "pictures"}})
    bound = [claim() | {"spec": {"volumeName": "pvc-1"}}, {"metadata": {"name": "pictures"}, "spec": {"volumeName": "pvc-2"}}]

    def reason(*events: dict[str, Any]) -> str:
        pods = [lost("chief", "node-3"), new]
        (task,) = pod_status.status(RunSnapshot("digits", [job("chief")], pods, bound, events), NOW).tasks
        return task.reason

    own = attach_event(new, "FailedAttachVolume", EXCLUSIVE.format("pvc-1"), 1)
    other = attach_event(new, "FailedAttachVolume", 'Multi-Attach error for volume "pvc-2" Volume is already used by pod(s) reader', 2)
    first, second = "its volume digits is still attached to the node node-3", "its volume pictures is in use on another node, by reader"
    assert reason(own, other) == f"1m: {first}, which is lost; {second}"
    assert reason(own, other, attach_event(new, "SuccessfulAttachVolume", SUCCEEDED.format("pvc-2"), 3)) == f"1m: {first}, which is lost"
    assert reason(own, other, attach_event(new, "SuccessfulAttachVolume", SUCCEEDED.format("pvc-1"), 3)) == f"1m: {second}"


def test_a_volume_that_another_pod_uses_is_named_with_that_pod(golden: Golden) -> None:
    new = waiting("chief", node="node-1")
    message = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) reader'
    warning = attach_event(new, "FailedAttachVolume", message, 1)
    golden(task_status(new, events=(warning,)).reason)


READY = {"type": "Ready", "status": "True"}


@pytest.mark.parametrize(
    "tensorboards, remedy",
    [
        ([waiting("tensorboard", NO_AFFINITY)], "launcher tensorboard digits lets TensorBoard go to the volume, and this task follows it"),
        ([], "launcher down digits, and launcher up again"),
    ],
)
def test_an_evaluator_that_was_drained_after_the_chief_s_end_has_a_remedy(
    tensorboards: list[dict[str, Any]], remedy: str, golden: Golden
) -> None:
    pods = [mounting(ended("chief", 0), "node-2"), *tensorboards, waiting("evaluator", NO_AFFINITY)]
    snapshot = RunSnapshot("digits", [job("chief", 1, COMPLETE), job("evaluator")], pods, [claim()])
    task = next(task for task in pod_status.status(snapshot, NOW).tasks if task.name == "evaluator")
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
def test_tensorboard_and_an_evaluator_that_wait_for_each_other_are_freed_once_the_chief_has_ended(
    chief: dict[str, Any] | None, conditions: list[dict[str, str]], freed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = [one for one in (chief, waiting("tensorboard", NO_AFFINITY), waiting("evaluator", NO_AFFINITY)) if one]
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
    """Wait for TensorBoard in a cluster with these objects, and `tensorboard` as its Deployment."""
    cluster = SimpleNamespace(
        list_objects=lambda kind, _: list(listed[kind]()), patch=patch, get=lambda *_: tensorboard, description=lambda: "mine"
    )
    port_forward.await_tensorboard(cast("Cluster", cluster), "digits")


def test_a_tensorboard_that_was_just_replaced_is_diagnosed_once_its_own_reason_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """First its Deployment has created no pod, then the scheduler has not handled the pod."""
    ready = mounting(running("tensorboard"), "node-1", conditions=[READY])
    reads = mounting(running("housekeeping"), "node-2")  # the pod with which `launcher get` still reads the volume
    polls = [[], [waiting("tensorboard")], [waiting("tensorboard", NO_AFFINITY)], [waiting("tensorboard")], [ready]]
    monkeypatch.setattr("time.sleep", lambda _: polls.pop(0))
    patched: list[str] = []
    chief = mounting(ended("chief", 0), "node-2")
    listed = {"Pod": lambda: [chief, reads, *polls[0]], "Job": lambda: [job("chief", 1, COMPLETE)]}
    await_tensorboard(listed, lambda _, name, __: patched.append(name), tensorboard={"status": {}})
    assert patched == ["digits-tensorboard"]
    golden(*[line.split(" of digits ")[1] for line in capsys.readouterr().err.splitlines()])


def test_a_tensorboard_that_gets_no_pod_has_a_reason_and_a_missing_one_is_not_waited_for() -> None:
    refused = {"type": "ReplicaFailure", "status": "True", "message": 'pods "digits-tensorboard-1" is forbidden: exceeded quota: q'}
    listed: dict[str, Callable[[], list[dict[str, Any]]]] = {"Pod": list, "Job": list}
    with pytest.raises(LauncherError, match=r"TensorBoard of digits gets no pod: pods .* exceeded quota: q"):
        await_tensorboard(listed, pytest.fail, tensorboard={"status": {"conditions": [refused]}})
    with pytest.raises(UsageError, match="digits has no TensorBoard in mine"):
        await_tensorboard(listed, pytest.fail)
