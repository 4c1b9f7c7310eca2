"""Which pods are marked as failed, and which run is ended because it never started."""

import dataclasses
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import pod_status
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import ForbiddenError
from launcher.backend.kubernetes.pod_status import ClusterSnapshot
from launcher.backend.kubernetes.reconcile import Reconciler, evicted_too_often, lost_pods, too_late, unfinished_jobs
from launcher.runs.status import RunStatus, State, TaskStatus
from tests.golden_messages import Golden
from tests.launcher.backend.kubernetes import objects

NOW = datetime(2026, 1, 1, 0, 10, tzinfo=UTC).timestamp()


def pod(
    phase: str = "Running", *, ready: str = "NodeNotReady", deleted: str | None = "2026-01-01T00:09:30Z", grace: int = 30
) -> dict[str, Any]:
    head: dict[str, Any] = {"name": "digits-worker-0-abc", "uid": "1", "labels": {"app.kubernetes.io/component": "worker"}}
    if deleted:
        head |= {"deletionTimestamp": deleted, "deletionGracePeriodSeconds": grace}
    conditions = [{"type": "Ready", "status": "False", "reason": ready}]
    return {"metadata": head, "spec": {"nodeName": "node-1"}, "status": {"phase": phase, "conditions": conditions}}


def test_a_pod_on_a_lost_node_is_marked_as_failed_some_time_after_kubernetes_deleted_it() -> None:
    seen = ClusterSnapshot("digits", (), [pod()])
    assert lost_pods(seen, NOW, 60) == [pod()]  # deleted at 00:09:00, to be gone by 00:09:30
    assert lost_pods(seen, NOW, 61) == []


def moved_off(ready: str) -> dict[str, Any]:
    made = pod()
    made["status"]["conditions"] = [
        {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"},
        {"type": "Ready", "status": ready, "reason": "ContainersNotReady"},
    ]
    return made


def test_a_pod_whose_node_may_answer_is_marked_as_failed_only_when_its_grace_period_is_long_over() -> None:
    tainted = moved_off("False")
    assert lost_pods(ClusterSnapshot("digits", (), [tainted]), NOW, 30) == [tainted]  # it should have been gone by 00:09:30
    assert lost_pods(ClusterSnapshot("digits", (), [tainted]), NOW, 31) == []


def test_a_pod_whose_node_answers_is_never_marked_as_failed() -> None:
    saving, beside, well = moved_off("True"), moved_off("False"), pod(deleted=None)
    well["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    assert lost_pods(ClusterSnapshot("digits", (), [saving]), NOW + 600, 0) == []
    assert lost_pods(ClusterSnapshot("digits", (), [beside, well]), NOW + 600, 0) == []
    well["spec"]["nodeName"] = "node-2"
    assert lost_pods(ClusterSnapshot("digits", (), [beside, well]), NOW + 600, 0) == [beside]


def test_the_pods_of_a_silent_node_are_marked_as_failed_together_those_of_the_volume_first() -> None:
    later, elsewhere, tensorboard = (pod(deleted="2026-01-01T00:09:31Z") for _ in range(3))
    elsewhere["spec"]["nodeName"] = "node-2"
    tensorboard["metadata"]["labels"]["tf-launcher/volume"] = "digits"
    leaving = pod(ready="", deleted="2026-01-01T00:09:31Z")
    leaving["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]
    assert lost_pods(ClusterSnapshot("digits", (), [later, elsewhere, tensorboard, leaving]), NOW, 60) == []
    assert lost_pods(ClusterSnapshot("digits", (), [later, pod(), elsewhere, tensorboard, leaving]), NOW, 60) == [tensorboard, later, pod()]


def test_other_pods_are_not_touched() -> None:
    others = [pod(deleted=None), pod("Succeeded"), pod("Failed"), pod(ready="ContainersNotReady")]
    assert lost_pods(ClusterSnapshot("digits", (), others), NOW, 0) == []


def test_what_does_not_end_with_its_run_is_ended_in_its_time() -> None:
    def made(role: str, *, ended: str = "", **annotations: str) -> dict[str, Any]:
        conditions = [{"type": "Complete", "status": "True"}] if ended else []
        status = {"conditions": conditions, "completionTime": ended or None}
        named = {f"tf-launcher/{key.replace('_', '-')}": value for key, value in annotations.items()}
        head = {"name": role, "annotations": named, "labels": {"app.kubernetes.io/component": role}}
        return {"metadata": head, "spec": {"completions": 2}, "status": status}

    ps, worker = made("ps", ends_after="0"), made("worker", ends_after="10")
    assert unfinished_jobs(ClusterSnapshot("digits", [made("chief"), ps, worker]), NOW) == []
    done = made("chief", ended="2026-01-01T00:09:55Z")
    assert unfinished_jobs(ClusterSnapshot("digits", [done, ps, worker]), NOW) == [(ps, 0)]
    assert unfinished_jobs(ClusterSnapshot("digits", [done, ps, worker]), NOW + 5) == [(ps, 0), (worker, 0)]
    ps["spec"]["completions"] = 0
    assert (
        unfinished_jobs(ClusterSnapshot("digits", [done, ps, made("worker", ended="2026-01-01T00:09:56Z", ends_after="10")]), NOW + 60)
        == []
    )


def test_workers_that_do_not_end_with_the_first_of_them_are_ended_in_their_time() -> None:
    head = {"labels": {"app.kubernetes.io/component": "worker"}, "annotations": {"batch.kubernetes.io/job-completion-index": "0"}}
    ended = {"containerStatuses": [{"state": {"terminated": {"finishedAt": "2026-01-01T00:09:55Z"}}}]}
    first = {"metadata": head, "status": {"phase": "Succeeded", **ended}}
    names = {"name": "w", "labels": head["labels"], "annotations": {"tf-launcher/ends-after": "10"}}
    workers = {"metadata": names, "spec": {"completions": 2}, "status": {"completedIndexes": "0"}}
    assert unfinished_jobs(ClusterSnapshot("digits", [workers], [first]), NOW + 5) == [(workers, 1)]
    assert unfinished_jobs(ClusterSnapshot("digits", [workers], [first]), NOW) == []
    assert unfinished_jobs(ClusterSnapshot("digits", [workers]), NOW) == [(workers, 1)]  # its pod is gone
    assert unfinished_jobs(ClusterSnapshot("digits", [{**workers, "status": {"completedIndexes": "1,10"}}], [first]), NOW + 5) == []
    assert unfinished_jobs(ClusterSnapshot("digits", [{**workers, "spec": {"completions": 1}}], [first]), NOW + 5) == []  # done once


def job(start: str | None) -> dict[str, Any]:
    return {"metadata": {"name": "digits-chief", "labels": {}}, "status": {"startTime": start} if start else {}}


def status(state: State, step: int | None = None) -> RunStatus:
    tasks = (TaskStatus("chief", state),)
    return RunStatus("digits", "kubernetes", state, "chief: 4m: 0/6 nodes: insufficient nvidia.com/gpu", step=step, tasks=tasks)


def test_a_run_that_waits_for_a_node_beyond_the_start_timeout_is_too_late(golden: Golden) -> None:
    seen = ClusterSnapshot("digits", [job("2026-01-01T00:06:00Z")], [pod("Pending", deleted=None)])
    told = too_late(status(State.PENDING), seen, NOW, 240)
    golden(told)
    assert too_late(status(State.PENDING), seen, NOW, 241) == ""


def test_a_run_that_has_trained_or_waits_in_its_queue_is_not() -> None:
    seen = ClusterSnapshot("digits", [job("2026-01-01T00:06:00Z")], [pod("Pending", deleted=None)])
    assert too_late(status(State.PENDING, step=7), seen, NOW, 1) == ""
    assert too_late(status(State.RUNNING), seen, NOW, 1) == ""
    assert too_late(status(State.PENDING), ClusterSnapshot("digits", [job(None)]), NOW, 1) == ""


def test_tasks_that_have_all_started_wait_for_each_other_by_themselves() -> None:
    seen = ClusterSnapshot("digits", [job("2026-01-01T00:06:00Z")], [pod(deleted=None)])
    assert too_late(status(State.PENDING), seen, NOW, 1) == ""


def test_a_pod_that_replaces_one_that_ran_may_wait_for_its_node() -> None:
    replaced = pod("Pending", deleted=None)
    replaced["metadata"]["creationTimestamp"] = "2026-01-01T00:08:30Z"
    seen = ClusterSnapshot("digits", [job("2026-01-01T00:06:00Z")], [replaced])
    assert too_late(status(State.PENDING), seen, NOW, 60) == ""
    replaced["metadata"]["creationTimestamp"] = "2026-01-01T00:06:30Z"
    assert too_late(status(State.PENDING), seen, NOW, 60)


def test_a_run_is_too_late_only_when_it_was_seen_to_wait_for_so_long() -> None:
    seen = ClusterSnapshot("digits", [job("2026-01-01T00:06:00Z")], [pod("Pending", deleted=None)])
    reconciler = Reconciler(cast("Cluster", Refusing()), "digits", 60)
    # A launcher that begins to watch now knows nothing of before.
    assert reconciler.start_timeout_reason(seen, status(State.PENDING), 0.05) == ""
    time.sleep(0.1)
    assert reconciler.start_timeout_reason(seen, status(State.PENDING), 0.05)
    assert reconciler.start_timeout_reason(seen, status(State.RUNNING), 0.05) == ""
    time.sleep(0.1)
    assert reconciler.start_timeout_reason(seen, status(State.PENDING), 0.05) == ""  # it has run


class AwayError(Exception):
    """The cluster does not answer."""


class AwayOnce:
    """A cluster that answers the second time."""

    namespace = "team-a"
    patched = 0

    def now(self) -> float:
        """Return a time by which what is here was marked as failed."""
        return NOW

    def get(self, *_: str) -> dict[str, Any]:
        """Return the pod that is here."""
        return pod()

    def patch(self, kind: str, name: str, patch: dict[str, Any], *, subresource: str = "") -> None:
        """Answer the second time."""
        self.patched += 1
        if self.patched == 1:
            raise AwayError(kind, name, patch, subresource)


def test_what_a_cluster_that_was_away_could_not_do_is_done_later() -> None:
    cluster = AwayOnce()
    reconciler, seen = Reconciler(cast("Cluster", cluster), "digits", 0), ClusterSnapshot("digits", (), [pod()])
    with pytest.raises(AwayError):
        list(reconciler.reconcile(seen, status(State.RUNNING)))
    (told,) = reconciler.reconcile(seen, status(State.RUNNING))
    assert "was marked as failed" in told
    assert list(reconciler.reconcile(seen, status(State.RUNNING))) == []
    assert cluster.patched == 2


class Refusing:
    """A cluster in which the status of pods may not be changed."""

    namespace = "team-a"

    def now(self) -> float:
        """Return a time by which what is here was marked as failed."""
        return NOW

    def get(self, *_: str) -> dict[str, Any]:
        """Return the pod that is here."""
        return pod()

    def patch(self, kind: str, name: str, patch: dict[str, Any], *, subresource: str = "") -> None:
        """Refuse."""
        raise ForbiddenError(f"{kind} {name} {subresource} {patch}", "", "")


def test_who_may_not_give_a_pod_up_is_told_the_command_once() -> None:
    reconciler = Reconciler(cast("Cluster", Refusing()), "digits", 0)
    seen = ClusterSnapshot("digits", (), [pod()])
    (told,) = reconciler.reconcile(seen, status(State.RUNNING))
    assert told.startswith(
        "worker-0 is stuck on the lost node node-1, and you lack permission to mark its pod as failed. A user who may patch pods/status can run: kubectl patch pod"
    )
    assert told.endswith("""digits-worker-0-abc -n team-a --subresource=status --type=merge -p '{"status":{"phase":"Failed"}}'""")
    assert list(reconciler.reconcile(seen, status(State.RUNNING))) == []


def test_a_pod_that_has_changed_since_it_was_seen_is_not_marked_as_failed() -> None:
    """Its node may answer again: two chiefs would share one volume."""
    there = pod()
    there["metadata"]["resourceVersion"] = "8"
    for now in (there, None):
        cluster = cast("Cluster", SimpleNamespace(now=lambda: NOW, get=lambda *_, now=now: now, patch=pytest.fail))
        assert list(Reconciler(cluster, "digits", 0).reconcile(ClusterSnapshot("digits", (), [pod()]), status(State.RUNNING))) == []


def test_what_keeps_a_run_from_starting_is_told_once_while_it_lasts() -> None:
    reconciler = Reconciler(cast("Cluster", Refusing()), "digits", 60)
    waits = dataclasses.replace(status(State.PENDING), reason_code="chief: nodes")
    later = dataclasses.replace(waits, reason="chief: 5m: 0/6 nodes: insufficient nvidia.com/gpu")
    other = dataclasses.replace(waits, reason="chief: 5m: ImagePullBackOff: Back-off pulling image", reason_code="chief: image")
    peers = dataclasses.replace(waits, reason="chief: waiting for ps-0", reason_code="")  # as tasks tell themselves
    said = [note for one in (waits, later, other, later, peers) for note in reconciler.reconcile(ClusterSnapshot("digits", ()), one)]
    assert said == [waits.reason, other.reason]


def test_what_keeps_a_claim_from_its_volume_is_told_though_it_is_of_no_task() -> None:
    reconciler = Reconciler(cast("Cluster", Refusing()), "digits", 60)
    reason = "there is no storage class x; write another storage.class"
    waits = dataclasses.replace(status(State.PENDING), reason=reason, reason_code="storage")
    assert [note for _ in range(2) for note in reconciler.reconcile(ClusterSnapshot("digits", ()), waits)] == [waits.reason]


def test_jobs_that_something_else_made_are_left_to_it_when_one_has_failed() -> None:
    owner = {"kind": "JobSet", "name": "digits", "controller": True}
    jobs = [{"metadata": {"name": f"digits-{role}-0", "ownerReferences": [owner]}} for role in ("chief", "worker")]
    assert (
        list(Reconciler(cast("Cluster", Refusing()), "digits", 60).reconcile(ClusterSnapshot("digits", jobs), status(State.FAILED))) == []
    )


def test_what_fails_after_a_run_has_succeeded_is_not_how_it_has_ended() -> None:
    def made(role: str, kind: str, at: str, **annotations: str) -> dict[str, Any]:
        head = {"name": role, "labels": {"app.kubernetes.io/component": role}, "annotations": annotations}
        status = {"conditions": [{"type": kind, "status": "True", "lastTransitionTime": at}], "completionTime": at}
        return {"metadata": head, "spec": {"completions": 1}, "status": status}

    chief = made("chief", "Complete", "2026-01-01T00:09:00Z")
    late, early = (made("ps", "Failed", at, **{"tf-launcher/follows": "true"}) for at in ("2026-01-01T00:20:00Z", "2026-01-01T00:08:00Z"))
    states = [
        pod_status.status(ClusterSnapshot("digits", [chief, other]), NOW).state
        for other in (late, early, made("ps", "Failed", "2026-01-01T00:20:00Z"))
    ]
    assert states == [State.SUCCEEDED, State.FAILED, State.FAILED]


def test_a_task_that_outgrows_its_storage_more_often_than_it_may_fail_ends_the_run() -> None:
    def evicted(index: int, **condition: str) -> dict[str, Any]:
        made = objects.ended("worker", 143, index)
        told = {"reason": "Evicted", "message": "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. "}
        return {**made, "status": {**made["status"], **told, "conditions": [condition] if condition else []}}

    def said(*pods: dict[str, Any], ignored: int = 143, **owned: Any) -> str:
        policy = {"rules": [{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [ignored]}}]}
        workers = objects.job("worker", 2, backoffLimitPerIndex=1, podFailurePolicy=policy)
        return evicted_too_often(ClusterSnapshot("digits", [{**workers, "metadata": {**workers["metadata"], **owned}}], pods))

    twice = evicted(1), evicted(1)
    assert said(*twice).startswith("worker-1, attempt 2: evicted for what it has stored: Pod ephemeral local storage usage exceeds")
    assert said(evicted(0), evicted(1)) == ""  # each as often as it may
    assert said(*(evicted(1, type="DisruptionTarget", status="True") for _ in range(5))) == ""
    assert said(*twice, ignored=42) == ""  # its Job counts them
    assert said(*twice, ownerReferences=[{"kind": "JobSet", "name": "digits", "controller": True}]) == ""


def test_a_run_of_which_somebody_has_deleted_a_job_is_not_one_that_has_not_started() -> None:
    """A launcher that has only just begun to watch it would else end what has trained for hours."""
    cluster = cast("Cluster", SimpleNamespace(now=lambda: NOW))
    begun, waiting = ClusterSnapshot("digits", [job("2026-01-01T00:00:00Z")], []), status(State.PENDING)
    assert Reconciler(cluster, "digits", 60).start_timeout_reason(begun, waiting, 0).startswith("not started within limits.start_timeout")
    broken = dataclasses.replace(waiting, missing=("job/digits-worker",))
    assert Reconciler(cluster, "digits", 60).start_timeout_reason(begun, broken, 0) == ""
