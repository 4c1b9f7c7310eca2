"""Pods that are marked as failed, and runs that are ended because they never started."""

import dataclasses
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kubernetes.client.exceptions import ApiException

from launcher.backend.kubernetes import pod_status
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import ForbiddenError
from launcher.backend.kubernetes.pod_status import RunSnapshot
from launcher.backend.kubernetes.reconcile import Reconciler, eviction_failure, lost_pods, start_failure, unfinished_jobs
from launcher.errors import LauncherError
from launcher.runs.status import RunStatus, State, TaskStatus
from tests.golden_messages import Golden
from tests.launcher.backend.kubernetes import objects
from tests.launcher.backend.kubernetes.objects import NOW


def pod(
    phase: str = "Running", *, ready: str = "NodeNotReady", deleted: str | None = "2026-01-01T00:09:30Z", grace: int = 30
) -> dict[str, Any]:
    head: dict[str, Any] = {
        "name": "digits-worker-0-abc",
        "namespace": "team-a",
        "uid": "1",
        "labels": {"app.kubernetes.io/component": "worker"},
    }
    if deleted:
        head |= {"deletionTimestamp": deleted, "deletionGracePeriodSeconds": grace}
    conditions = [{"type": "Ready", "status": "False", "reason": ready}]
    return {"metadata": head, "spec": {"nodeName": "node-1"}, "status": {"phase": phase, "conditions": conditions}}


def test_a_pod_on_a_lost_node_is_marked_as_failed_some_time_after_kubernetes_deleted_it() -> None:
    assert lost_pods([pod()], NOW, 60) == [pod()]  # deleted at 00:09:00, and to end by 00:09:30
    assert lost_pods([pod()], NOW, 61) == []


def moved_off(ready: str) -> dict[str, Any]:
    moved = pod()
    moved["status"]["conditions"] = [
        {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"},
        {"type": "Ready", "status": ready, "reason": "ContainersNotReady"},
    ]
    return moved


def test_a_pod_whose_node_may_answer_is_marked_as_failed_only_when_its_grace_period_is_long_over() -> None:
    tainted = moved_off("False")
    assert lost_pods([tainted], NOW, 30) == [tainted]  # it should have ended by 00:09:30
    assert lost_pods([tainted], NOW, 31) == []


def test_a_pod_whose_node_answers_is_never_marked_as_failed() -> None:
    saving, unready, healthy = moved_off("True"), moved_off("False"), pod(deleted=None)
    healthy["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    assert lost_pods([saving], NOW + 600, 0) == []
    assert lost_pods([unready, healthy], NOW + 600, 0) == []
    healthy["spec"]["nodeName"] = "node-2"
    assert lost_pods([unready, healthy], NOW + 600, 0) == [unready]


def test_the_pods_of_a_silent_node_are_marked_as_failed_together_those_of_the_volume_first() -> None:
    later, elsewhere, tensorboard = (pod(deleted="2026-01-01T00:09:31Z") for _ in range(3))
    elsewhere["spec"]["nodeName"] = "node-2"
    tensorboard["metadata"]["labels"]["tf-launcher/volume"] = "digits"
    leaving = pod(ready="", deleted="2026-01-01T00:09:31Z")
    leaving["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]
    assert lost_pods([later, elsewhere, tensorboard, leaving], NOW, 60) == []
    assert lost_pods([later, pod(), elsewhere, tensorboard, leaving], NOW, 60) == [tensorboard, later, pod()]


def test_other_pods_are_not_touched() -> None:
    others = [pod(deleted=None), pod("Succeeded"), pod("Failed"), pod(ready="ContainersNotReady")]
    assert lost_pods(others, NOW, 0) == []


def test_jobs_that_do_not_end_with_their_run_are_ended_when_due() -> None:
    def role_job(role: str, *, ended: str = "", **annotations: str) -> dict[str, Any]:
        conditions = [{"type": "Complete", "status": "True"}] if ended else []
        status = {"conditions": conditions, "completionTime": ended or None}
        named = {f"tf-launcher/{key.replace('_', '-')}": value for key, value in annotations.items()}
        head = {"name": role, "annotations": named, "labels": {"app.kubernetes.io/component": role}}
        return {"metadata": head, "spec": {"completions": 2}, "status": status}

    ps, worker = role_job("ps", ends_after="0"), role_job("worker", ends_after="10")
    assert unfinished_jobs(RunSnapshot("digits", [role_job("chief"), ps, worker]), NOW) == []
    complete = role_job("chief", ended="2026-01-01T00:09:55Z")
    assert unfinished_jobs(RunSnapshot("digits", [complete, ps, worker]), NOW) == [(ps, 0)]
    assert unfinished_jobs(RunSnapshot("digits", [complete, ps, worker]), NOW + 5) == [(ps, 0), (worker, 0)]
    ps["spec"]["completions"] = 0
    assert (
        unfinished_jobs(RunSnapshot("digits", [complete, ps, role_job("worker", ended="2026-01-01T00:09:56Z", ends_after="10")]), NOW + 60)
        == []
    )


def test_workers_that_do_not_end_with_the_first_of_them_are_ended_when_due() -> None:
    head = {"labels": {"app.kubernetes.io/component": "worker"}, "annotations": {"batch.kubernetes.io/job-completion-index": "0"}}
    ended = {"containerStatuses": [{"state": {"terminated": {"finishedAt": "2026-01-01T00:09:55Z"}}}]}
    first = {"metadata": head, "status": {"phase": "Succeeded", **ended}}
    names = {"name": "w", "labels": head["labels"], "annotations": {"tf-launcher/ends-after": "10"}}
    workers = {"metadata": names, "spec": {"completions": 2}, "status": {"completedIndexes": "0"}}
    assert unfinished_jobs(RunSnapshot("digits", [workers], [first]), NOW + 5) == [(workers, 1)]
    assert unfinished_jobs(RunSnapshot("digits", [workers], [first]), NOW) == []
    assert unfinished_jobs(RunSnapshot("digits", [workers]), NOW) == [(workers, 1)]  # its pod is deleted
    assert unfinished_jobs(RunSnapshot("digits", [{**workers, "status": {"completedIndexes": "1,10"}}], [first]), NOW + 5) == []
    assert unfinished_jobs(RunSnapshot("digits", [{**workers, "spec": {"completions": 1}}], [first]), NOW + 5) == []  # already ended


def job(start: str | None) -> dict[str, Any]:
    return {"metadata": {"name": "digits-chief", "labels": {}}, "status": {"startTime": start} if start else {}}


def status(state: State, step: int | None = None) -> RunStatus:
    tasks = (TaskStatus("chief", state),)
    return RunStatus("digits", "kubernetes", state, "chief: 4m: 0/6 nodes: insufficient nvidia.com/gpu", step=step, tasks=tasks)


def test_a_run_that_waits_for_a_node_beyond_the_start_timeout_is_too_late(golden: Golden) -> None:
    snapshot = RunSnapshot("digits", [job("2026-01-01T00:06:00Z")], [pod("Pending", deleted=None)])
    reason = start_failure(status(State.PENDING), snapshot, NOW, 240)
    golden(reason)
    assert start_failure(status(State.PENDING), snapshot, NOW, 241) == ""


def test_a_run_that_has_trained_or_waits_in_its_queue_is_not_too_late() -> None:
    snapshot = RunSnapshot("digits", [job("2026-01-01T00:06:00Z")], [pod("Pending", deleted=None)])
    assert start_failure(status(State.PENDING, step=7), snapshot, NOW, 1) == ""
    assert start_failure(status(State.RUNNING), snapshot, NOW, 1) == ""
    assert start_failure(status(State.PENDING), RunSnapshot("digits", [job(None)]), NOW, 1) == ""


def test_a_run_whose_tasks_have_all_started_is_not_too_late() -> None:
    snapshot = RunSnapshot("digits", [job("2026-01-01T00:06:00Z")], [pod(deleted=None)])
    assert start_failure(status(State.PENDING), snapshot, NOW, 1) == ""


def test_a_pod_that_replaces_one_that_ran_may_wait_for_its_node() -> None:
    replaced = pod("Pending", deleted=None)
    replaced["metadata"]["creationTimestamp"] = "2026-01-01T00:08:30Z"
    snapshot = RunSnapshot("digits", [job("2026-01-01T00:06:00Z")], [replaced])
    assert start_failure(status(State.PENDING), snapshot, NOW, 60) == ""
    replaced["metadata"]["creationTimestamp"] = "2026-01-01T00:06:30Z"
    assert start_failure(status(State.PENDING), snapshot, NOW, 60)


def test_a_run_is_too_late_only_if_this_launcher_has_seen_it_wait_for_so_long() -> None:
    snapshot = RunSnapshot("digits", [job("2026-01-01T00:06:00Z")], [pod("Pending", deleted=None)])
    reconciler = Reconciler(cast("Cluster", Refusing()), "digits", 60)
    # A launcher that begins to watch does not know how long the run has waited.
    assert reconciler.observed_start_failure(snapshot, status(State.PENDING), 0.05) == ""
    time.sleep(0.1)
    assert reconciler.observed_start_failure(snapshot, status(State.PENDING), 0.05)
    assert reconciler.observed_start_failure(snapshot, status(State.RUNNING), 0.05) == ""
    time.sleep(0.1)
    assert reconciler.observed_start_failure(snapshot, status(State.PENDING), 0.05) == ""  # it has run


class Refusing:
    """A cluster in which the status of pods may not be changed."""

    namespace = "team-a"

    def __init__(self, current: dict[str, Any] | None = None) -> None:
        self.current = current

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return the pod as it is now; None if it is gone."""
        assert (kind, name) == ("Pod", "digits-worker-0-abc")
        return self.current

    def now(self) -> float:
        """Return a time at which the pod is due to be marked as failed."""
        return NOW

    def patch(self, kind: str, name: str, patch: dict[str, Any], *, subresource: str = "") -> None:
        """Refuse."""
        raise ForbiddenError(f"{kind} {name} {subresource} {patch}", "", "")


class NoAnswerError(Exception):
    """The cluster does not answer."""


class UnreachableOnce(Refusing):
    """A cluster that answers the second patch."""

    patched = 0

    def patch(self, kind: str, name: str, patch: dict[str, Any], *, subresource: str = "") -> None:
        """Fail the first time."""
        self.patched += 1
        if self.patched == 1:
            raise NoAnswerError(kind, name, patch, subresource)


def test_a_patch_that_an_unreachable_cluster_did_not_get_is_sent_again() -> None:
    cluster = UnreachableOnce()
    reconciler, snapshot = Reconciler(cast("Cluster", cluster), "digits", 0), RunSnapshot("digits", (), [pod()])
    with pytest.raises(NoAnswerError):
        list(reconciler.reconcile(snapshot, status(State.RUNNING)))
    (message,) = reconciler.reconcile(snapshot, status(State.RUNNING))
    assert "was marked as failed" in message
    assert list(reconciler.reconcile(snapshot, status(State.RUNNING))) == []
    assert cluster.patched == 2


def test_a_user_who_may_not_mark_a_pod_as_failed_gets_the_command_once() -> None:
    reconciler = Reconciler(cast("Cluster", Refusing(pod())), "digits", 0)
    snapshot = RunSnapshot("digits", (), [pod()])
    (message,) = reconciler.reconcile(snapshot, status(State.RUNNING))
    assert message.startswith(
        "worker-0 is stuck on the lost node node-1, and you lack permission to mark its pod as failed. A user who may patch pods/status can run: kubectl patch pod"
    )
    assert message.endswith("""digits-worker-0-abc -n team-a --subresource=status --type=merge -p '{"status":{"phase":"Failed"}}'""")
    assert list(reconciler.reconcile(snapshot, status(State.RUNNING))) == []


class ClusterWithPod(Refusing):
    """A cluster with one pod, whose status only changes by a patch that has its version; without a pod it answers 404."""

    def patch(self, kind: str, name: str, patch: dict[str, Any], *, subresource: str = "") -> None:
        assert (kind, name, subresource) == ("Pod", "digits-worker-0-abc", "status")
        if self.current is None or patch["metadata"]["resourceVersion"] != self.current["metadata"]["resourceVersion"]:
            raise LauncherError("changing Pod", "") from ApiException(status=409 if self.current else 404)
        self.current["status"] |= patch["status"]


def test_a_pod_that_has_changed_since_it_was_seen_is_not_marked_as_failed_until_it_is_seen_again() -> None:
    """Its node may answer again: its task may have succeeded, and two chiefs would share one volume."""
    seen, current = pod(), pod()
    seen["metadata"]["resourceVersion"], current["metadata"]["resourceVersion"] = "7", "8"
    cluster = ClusterWithPod(current)
    reconciler = Reconciler(cast("Cluster", cluster), "digits", 0)
    assert list(reconciler.reconcile(RunSnapshot("digits", (), [seen]), status(State.RUNNING))) == []
    assert current["status"]["phase"] == "Running"
    (message,) = reconciler.reconcile(RunSnapshot("digits", (), [current]), status(State.RUNNING))
    assert "was marked as failed" in message
    assert (current["status"]["phase"], current["status"]["reason"]) == ("Failed", "NodeLost")
    cluster.current = None  # it is gone
    reconciler = Reconciler(cast("Cluster", cluster), "digits", 0)
    assert list(reconciler.reconcile(RunSnapshot("digits", (), [seen]), status(State.RUNNING))) == []


def test_a_pod_that_has_changed_is_not_said_to_be_stuck_to_a_user_who_may_not_mark_it_as_failed() -> None:
    seen, current = pod(), pod("Succeeded")
    seen["metadata"]["resourceVersion"], current["metadata"]["resourceVersion"] = "7", "8"
    for cluster in (Refusing(current), Refusing()):  # it is gone
        reconciler = Reconciler(cast("Cluster", cluster), "digits", 0)
        assert list(reconciler.reconcile(RunSnapshot("digits", (), [seen]), status(State.RUNNING))) == []


def test_the_reason_why_a_run_does_not_start_is_reported_once_while_it_lasts() -> None:
    reconciler = Reconciler(cast("Cluster", Refusing()), "digits", 60)
    waiting = dataclasses.replace(status(State.PENDING), reason_code="chief: nodes")
    later = dataclasses.replace(waiting, reason="chief: 5m: 0/6 nodes: insufficient nvidia.com/gpu")
    other = dataclasses.replace(waiting, reason="chief: 5m: ImagePullBackOff: Back-off pulling image", reason_code="chief: image")
    peers = dataclasses.replace(waiting, reason="chief: waiting for ps-0", reason_code="")  # the tasks report this themselves
    notes = [note for one in (waiting, later, other, later, peers) for note in reconciler.reconcile(RunSnapshot("digits", ()), one)]
    assert notes == [waiting.reason, other.reason]


def test_the_reason_why_a_claim_has_no_volume_is_reported_although_it_concerns_no_task() -> None:
    reconciler = Reconciler(cast("Cluster", Refusing()), "digits", 60)
    reason = "there is no storage class x; write another storage.class"
    waiting = dataclasses.replace(status(State.PENDING), reason=reason, reason_code="storage")
    assert [note for _ in range(2) for note in reconciler.reconcile(RunSnapshot("digits", ()), waiting)] == [waiting.reason]


def test_jobs_of_another_controller_are_left_to_it_when_one_has_failed() -> None:
    owner = {"kind": "JobSet", "name": "digits", "controller": True}
    jobs = [{"metadata": {"name": f"digits-{role}-0", "ownerReferences": [owner]}} for role in ("chief", "worker")]
    assert list(Reconciler(cast("Cluster", Refusing()), "digits", 60).reconcile(RunSnapshot("digits", jobs), status(State.FAILED))) == []


def test_a_failure_after_a_run_has_succeeded_does_not_change_its_state() -> None:
    def ended_job(role: str, kind: str, at: str, **annotations: str) -> dict[str, Any]:
        head = {"name": role, "labels": {"app.kubernetes.io/component": role}, "annotations": annotations}
        status = {"conditions": [{"type": kind, "status": "True", "lastTransitionTime": at}], "completionTime": at}
        return {"metadata": head, "spec": {"completions": 1}, "status": status}

    chief = ended_job("chief", "Complete", "2026-01-01T00:09:00Z")
    late, early = (
        ended_job("ps", "Failed", at, **{"tf-launcher/follows": "true"}) for at in ("2026-01-01T00:20:00Z", "2026-01-01T00:08:00Z")
    )
    states = [
        pod_status.status(RunSnapshot("digits", [chief, other]), NOW).state
        for other in (late, early, ended_job("ps", "Failed", "2026-01-01T00:20:00Z"))
    ]
    assert states == [State.SUCCEEDED, State.FAILED, State.FAILED]


def test_a_task_that_outgrows_its_storage_more_often_than_it_may_fail_ends_the_run() -> None:
    def evicted(index: int, **condition: str) -> dict[str, Any]:
        worker = objects.ended("worker", 143, index)
        eviction = {"reason": "Evicted", "message": "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. "}
        return {**worker, "status": {**worker["status"], **eviction, "conditions": [condition] if condition else []}}

    def reason(*pods: dict[str, Any], ignored: int = 143, **owned: Any) -> str:
        policy = {"rules": [{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [ignored]}}]}
        workers = objects.job("worker", 2, backoffLimitPerIndex=1, podFailurePolicy=policy)
        return eviction_failure(RunSnapshot("digits", [{**workers, "metadata": {**workers["metadata"], **owned}}], pods))

    twice = evicted(1), evicted(1)
    assert reason(*twice).startswith(
        "worker-1, attempt 2: evicted: it exceeded a limit of storage: Pod ephemeral local storage usage exceeds"
    )
    assert reason(evicted(0), evicted(1)) == ""  # each as often as it is allowed
    assert reason(*(evicted(1, type="DisruptionTarget", status="True") for _ in range(5))) == ""
    assert reason(*twice, ignored=42) == ""  # its Job counts them
    assert reason(*twice, ownerReferences=[{"kind": "JobSet", "name": "digits", "controller": True}]) == ""


def test_a_run_whose_job_was_deleted_is_not_taken_for_one_that_never_started() -> None:
    """Otherwise a launcher that has just begun to watch would end a run that has trained for hours."""
    cluster = cast("Cluster", SimpleNamespace(now=lambda: NOW))
    snapshot, waiting = RunSnapshot("digits", [job("2026-01-01T00:00:00Z")], []), status(State.PENDING)
    assert (
        Reconciler(cluster, "digits", 60).observed_start_failure(snapshot, waiting, 0).startswith("not started within limits.start_timeout")
    )
    broken = dataclasses.replace(waiting, missing=("job/digits-worker",))
    assert Reconciler(cluster, "digits", 60).observed_start_failure(snapshot, broken, 0) == ""
