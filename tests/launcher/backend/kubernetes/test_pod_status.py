"""The status of a run, from objects as the API server returns them."""

from typing import Any

import pytest

from launcher.backend.kubernetes.pod_status import RunSnapshot, age, status
from launcher.runs.status import State
from launcher.timestamps import parse_rfc3339
from tests.golden_messages import Golden
from tests.launcher.backend.kubernetes.objects import COMPLETE, FAILED, NOW, ended, job, pod, running


def test_a_run_of_a_jobset_ends_when_the_jobset_does(golden: Golden) -> None:
    owner = {"ownerReferences": [{"kind": "JobSet", "name": "digits", "controller": True}]}
    jobs = [job("chief", 1, FAILED), job("worker", 1)]
    jobs = [{**one, "metadata": {**one["metadata"], **owner}} for one in jobs]
    pods = [ended("chief", 137), running("worker")]

    def state_and_reason(*conditions: dict[str, str]) -> tuple[State, str]:
        run = status(RunSnapshot("digits", jobs, pods, jobset={"metadata": {}, "status": {"conditions": list(conditions)}}), NOW)
        return run.state, run.reason

    state, reason = state_and_reason()
    assert state is State.RESTARTING
    golden(reason)
    assert state_and_reason({"type": "Failed", "status": "True"})[0] is State.FAILED
    assert state_and_reason({"type": "Completed", "status": "True"}) == (State.SUCCEEDED, "")
    assert status(RunSnapshot("digits", jobs, pods), NOW).state is State.FAILED  # without the right to read the JobSet
    del jobs[0], pods[0]  # the Job that failed was deleted
    jobset_failed = {"type": "Failed", "status": "True", "message": "jobset failed"}
    assert state_and_reason(jobset_failed) == (State.FAILED, "jobset/digits: jobset failed")


def test_a_run_has_succeeded_only_when_every_job_is_complete() -> None:
    jobs = [job("worker", 1), job("chief", 1, COMPLETE), job("ps", 1, COMPLETE)]
    pods = [ended("chief", 0), running("worker"), ended("ps", 0)]
    unfinished = status(RunSnapshot("digits", jobs, pods), NOW)
    assert (unfinished.state, unfinished.strategy) == (State.RUNNING, "parameter_server")
    assert [(task.name, task.state) for task in unfinished.tasks] == [
        ("chief", State.SUCCEEDED),
        ("worker-0", State.RUNNING),
        ("ps-0", State.SUCCEEDED),
    ]
    finished = status(RunSnapshot("digits", [job("chief", 1, COMPLETE)], [ended("chief", 0)]), NOW)
    assert (finished.state, finished.tasks[0].exit_code) == (State.SUCCEEDED, 0)


def test_a_task_that_waits_says_how_long_and_for_what(golden: Golden) -> None:
    waiting = pod("worker", 3, "Pending")
    message = "0/6 nodes are available: 6 Insufficient nvidia.com/gpu. preemption: none"
    waiting["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}],
    }
    pods = [running("chief"), *(running("worker", index) for index in range(3)), waiting]
    run = status(RunSnapshot("digits", [job("chief"), job("worker", 4)], pods), NOW)
    assert run.tasks[4].state == State.PENDING
    golden(run.tasks[4].reason)
    golden(run.reason)
    assert run.tasks[4].remedy.startswith("free some, or add nodes")


def test_a_pod_that_cannot_pull_its_image_does_not_run(golden: Golden) -> None:
    back_off = pod("chief", 0, "Pending", waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image"})
    run = status(RunSnapshot("digits", [job("chief")], [back_off]), NOW)
    assert run.state is run.tasks[0].state is State.PENDING
    golden(run.tasks[0].reason)


def test_restarts_are_counted_with_their_causes(golden: Golden) -> None:
    first = ended("worker", 137, created="2026-01-01T00:01:00Z")
    second = ended("worker", 1, created="2026-01-01T00:05:00Z", message="ValueError: no such file\n")
    run = status(RunSnapshot("digits", [job("worker")], [running("worker", created="2026-01-01T00:08:00Z"), first, second]), NOW)
    (task,) = run.tasks
    assert (task.state, task.address) == (State.RUNNING, "digits-worker-0.digits")
    assert [(one.attempt, one.exit_code) for one in task.restarts] == [(1, 137), (2, 1)]
    golden(*(one.cause for one in task.restarts))
    backing_off = status(RunSnapshot("digits", [job("worker")], [first, second]), NOW)
    assert backing_off.tasks[0].state is State.RESTARTING
    assert len(backing_off.tasks[0].restarts) == 2


def test_the_pods_that_a_job_may_still_replace_are_counted_for_each_task() -> None:
    single = job("chief", backoffLimit=10)
    single["status"]["failed"] = 3
    failed_once = running("worker", 1)
    failed_once["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"] = "1"
    workers = job("worker", 2, backoffLimitPerIndex=10, maxFailedIndexes=0)
    shared = job("ps", 2, backoffLimit=10)
    pods = [running("chief"), running("worker"), failed_once, running("ps"), running("ps", 1)]
    run = status(RunSnapshot("digits", [single, workers, shared], pods), NOW)
    left = {task.name: task.restarts_left for task in run.tasks}
    assert left == {"chief": 7, "worker-0": 10, "worker-1": 9, "ps-0": None, "ps-1": None}


def test_a_failed_run_names_task_attempt_code_and_last_line(golden: Golden) -> None:
    attempts = [ended("worker", 1, 1, f"2026-01-01T00:0{minute}:00Z", "ValueError: no such file\n") for minute in (1, 2, 3)]
    run = status(RunSnapshot("digits", [job("chief"), job("worker", 2, FAILED)], [running("chief"), *attempts]), NOW)
    assert run.state is State.FAILED
    golden(run.reason)


def failed(reason: str, at: str, kind: str = "Failed") -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": reason, "message": f"because of {reason}", "lastTransitionTime": at}


def test_the_task_that_failed_first_is_the_cause_not_those_that_ended_because_of_it(golden: Golden) -> None:
    orphaned = job("chief", 1, failed("PodFailurePolicy", "2026-01-01T00:08:00Z"))
    guilty = job("worker", 3, failed("BackoffLimitExceeded", "2026-01-01T00:09:30Z"), failed("x", "2026-01-01T00:09:01Z", "FailureTarget"))
    pods = [
        ended("chief", 75, at="2026-01-01T00:07:59Z", message="lost worker-2\n"),
        ended("worker", 143, 0, at="2026-01-01T00:08:30Z"),
        ended("worker", 1, 1, at="2026-01-01T00:09:00Z", message="OSError: later\n"),
        ended("worker", 1, 2, at="2026-01-01T00:08:55Z", message="ValueError: first\n"),
    ]
    run = status(RunSnapshot("digits", [orphaned, guilty], pods), NOW)
    golden(run.reason)
    greedy = ended("worker", 137, 2, at="2026-01-01T00:08:50Z", reason="OOMKilled")
    run = status(RunSnapshot("digits", [orphaned, guilty], [*pods[:3], greedy]), NOW)
    golden(run.reason)


@pytest.mark.parametrize("role, task", [("worker", "worker-11"), ("chief", "chief")])
def test_a_job_whose_pods_have_expired_still_names_the_task_and_its_exit_code(role: str, task: str) -> None:
    index = 11 if role == "worker" else 0
    message = f"Container trainer for pod team/digits-{role}-{index}-ctrt4 failed with exit code 2 matching FailJob rule at index 1"
    run = status(RunSnapshot("digits", [job(role, 12, failed("PodFailurePolicy", "2026-01-01T00:08:00Z") | {"message": message})]), NOW)
    assert (run.state, run.reason) == (State.FAILED, f"{task}: exit code 2")


def test_a_run_whose_deadline_has_passed_gives_that_as_its_reason_whatever_the_exit_codes_of_its_tasks(golden: Golden) -> None:
    late = [job(role, 1, failed("DeadlineExceeded", "2026-01-01T00:08:00Z")) for role in ("chief", "worker")]
    run = status(RunSnapshot("digits", late, [ended("chief", 143), ended("worker", 1)]), NOW)
    golden(run.reason)


def test_a_job_that_may_not_create_pods_has_the_reason() -> None:
    message = 'Error creating: pods "x" is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=1'
    event = {"type": "Warning", "reason": "FailedCreate", "message": message, "involvedObject": {"uid": "chief"}}
    run = status(RunSnapshot("digits", [job("chief")], events=[event]), NOW)
    reason = "chief: the namespace's quota gpus is used up; free some of it, or have it raised"
    assert (run.state, run.reason, run.reason_code) == (State.PENDING, reason, "chief: quota")


def test_a_claim_that_no_class_serves_is_the_run_s_reason(golden: Golden) -> None:
    claim = {"metadata": {"name": "digits", "uid": "c"}, "spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Pending"}}
    event = {
        "type": "Warning",
        "reason": "ProvisioningFailed",
        "message": 'storageclass.storage.k8s.io "x" not found',
        "involvedObject": {"uid": "c"},
    }
    run = status(RunSnapshot("digits", [job("chief")], [pod("chief", 0, "Pending")], [claim], [event]), NOW)
    assert run.reason_code == "storage"
    golden(run.reason)


def test_a_suspended_job_waits_for_its_queue_or_was_stopped(golden: Golden) -> None:
    queued = job("chief", suspend=True, labels={"kueue.x-k8s.io/queue-name": "team-a"})
    golden(status(RunSnapshot("digits", [queued]), NOW).reason)
    assert status(RunSnapshot("digits", [job("chief", suspend=True)]), NOW).tasks[0].state is State.STOPPED


def test_the_jobs_of_a_jobset_wait_for_its_queue() -> None:
    queued = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}, "spec": {"suspend": True}}
    run = status(RunSnapshot("digits", [job("chief", suspend=True), job("worker", suspend=True)], [], jobset=queued), NOW)
    assert (run.state, {task.reason for task in run.tasks}) == (State.PENDING, {"waits for its queue team"})


def test_a_queued_run_says_why_it_is_not_admitted(golden: Golden) -> None:
    labels = {"kueue.x-k8s.io/queue-name": "team"}
    queued = {"metadata": {"labels": labels, "uid": "s"}, "spec": {"suspend": True}}

    def workload(owner: str, message: str) -> dict[str, Any]:
        condition = {"type": "QuotaReserved", "status": "False", "message": message}
        return {"metadata": {"ownerReferences": [{"uid": owner}]}, "status": {"conditions": [condition]}}

    workloads = [workload("x", "another's"), workload("s", "couldn't assign flavors to pod set chief: insufficient quota for cpu")]
    run = status(RunSnapshot("digits", [job("chief", suspend=True)], [], jobset=queued, workloads=workloads), NOW)
    golden(run.reason)
    # Without a JobSet, each Job waits by itself.
    single = job("chief", suspend=True, labels=labels)
    single["metadata"]["uid"] = "x"
    golden(status(RunSnapshot("digits", [single], [], workloads=workloads), NOW).reason)


@pytest.mark.parametrize("seconds, expected", [(0.4, "0s"), (59, "59s"), (60, "1m"), (7300, "2h"), (200_000, "2d"), (-5, "0s")])
def test_ages_are_short(seconds: float, expected: str) -> None:
    assert age(seconds) == expected


@pytest.mark.parametrize(
    "state, expected",
    [
        ({"terminated": {"exitCode": 0}}, State.SUCCEEDED),
        ({"terminated": {"exitCode": 1}}, State.RESTARTING),
        ({"waiting": {"reason": "CrashLoopBackOff"}}, State.PENDING),
    ],
)
def test_a_task_whose_container_has_ended_is_not_pending_even_if_its_pod_still_runs(state: dict[str, Any], expected: State) -> None:
    """The pod's phase changes only after the container and its sidecars have ended."""
    snapshot = RunSnapshot("digits", [job("worker")], [pod("worker", 0, "Running", **state)])
    assert status(snapshot, NOW).tasks[0].state is expected


ADDED = {"name": "istio-proxy", "state": {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:08:30Z"}}}


def test_a_container_that_a_webhook_has_added_is_not_the_task(golden: Golden) -> None:
    """The kubelet sorts containers by name."""
    failed_task = ended("worker", 3, message="ValueError: x\n")
    failed_task["status"]["containerStatuses"].insert(0, ADDED)
    (task,) = status(RunSnapshot("digits", [job("worker")], [failed_task]), NOW).tasks
    assert (task.exit_code, task.ended) == (3, parse_rfc3339("2026-01-01T00:09:00Z"))
    golden(task.reason)
    own = pod("worker", 0, "Running", terminated={"exitCode": 0, "finishedAt": "2026-01-01T00:09:00Z"})
    own["status"]["containerStatuses"].insert(0, {"name": "istio-proxy", "state": {"running": {}}})
    (task,) = status(RunSnapshot("digits", [job("worker")], [own]), NOW).tasks
    assert task.state is State.SUCCEEDED
    golden(task.reason)
    waiting = pod("worker", 0, "Running", waiting={"reason": "CrashLoopBackOff"})
    waiting["status"]["containerStatuses"].insert(0, {"name": "istio-proxy", "state": {"running": {}}})
    assert status(RunSnapshot("digits", [job("worker")], [waiting]), NOW).tasks[0].state is State.PENDING
    added = ended("worker", 0)
    added["status"] = {
        "phase": "Failed",
        "containerStatuses": [{"name": "audit", "state": {"terminated": {"exitCode": 4}}}, *added["status"]["containerStatuses"]],
    }
    golden(status(RunSnapshot("digits", [job("worker")], [added]), NOW).tasks[0].reason)


def test_a_drained_pod_is_reported_as_drained_while_it_ends(golden: Golden) -> None:
    drained = running("worker", created="2026-01-01T00:05:00Z")
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    drained["status"]["conditions"] = [target]
    snapshot = RunSnapshot("digits", [job("worker")], [drained, running("worker")])
    golden(*[one.cause for one in status(snapshot, NOW).tasks[0].restarts])


def test_a_task_that_has_ended_names_the_sidecar_that_has_not(golden: Golden) -> None:
    """A sidecar that ignores SIGTERM lasts as long as its grace period, and so does the run."""
    chief = pod("chief", 0, "Running", terminated={"exitCode": 0})
    chief["status"]["initContainerStatuses"] = [{"name": "ship", "state": {"running": {}}}, {"name": "first", "state": {"terminated": {}}}]
    (task,) = status(RunSnapshot("digits", [job("chief")], [chief]), NOW).tasks
    assert task.state == State.SUCCEEDED
    golden(task.reason)


def test_a_task_whose_sidecar_has_not_ended_is_the_cause_not_those_that_ended_because_of_it(golden: Golden) -> None:
    guilty = pod("chief", 0, "Running", terminated={"exitCode": 1, "finishedAt": "2026-01-01T00:08:00Z", "message": "ValueError: first\n"})
    orphan = job("worker", 1, failed("PodFailurePolicy", "2026-01-01T00:09:30Z"))
    run = status(RunSnapshot("digits", [job("chief"), orphan], [guilty, ended("worker", 75, message="lost the chief\n")]), NOW)
    assert run.state == State.FAILED
    golden(run.reason)
