"""Attempts whose pods are deleted, from objects as the API server returns them."""

from typing import Any

from launcher.backend.kubernetes import past_attempts
from launcher.backend.kubernetes.pod_status import DELETED, RunSnapshot, status
from tests.golden_messages import Golden
from tests.launcher.backend.kubernetes.objects import COMPLETE, CREATED, FAILED, NOW, ended, event, job, running


def owned(pod: dict[str, Any], by: str = "worker", name: str = "") -> dict[str, Any]:
    """Return a pod as its Job creates it."""
    pod["metadata"]["ownerReferences"] = [{"uid": by}]
    pod["metadata"]["name"] = name or pod["metadata"]["name"]
    return pod


def created_event(name: str, at: str = CREATED, by: str = "worker") -> dict[str, Any]:
    return event("SuccessfulCreate", f"Created pod: {name}", at, uid=by)


def test_attempts_whose_pods_are_deleted_count_as_restarts() -> None:
    current = running("worker", 1, created="2026-01-01T00:09:30Z")
    names = [f"digits-worker-1-{end}" for end in ("aaaaa", "bbbbb", "ccccc")]
    events = [
        *map(created_event, names),
        created_event(current["metadata"]["name"], "2026-01-01T00:09:30Z"),
        created_event("digits-worker-1-zzzzz", by="the Job of an earlier run"),
        event("Killing", "Stopping container trainer", "2026-01-01T00:07:00Z", name=names[0]),
        event("TaintManagerEviction", "Marking for deletion", "2026-01-01T00:08:00Z", name=names[1]),
    ]
    drained = owned(running("worker", 1), name=names[2])
    drained["metadata"]["deletionTimestamp"] = "2026-01-01T00:09:00Z"
    drained["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
    attempts = past_attempts.attempts(job("worker", 2), events, [current], {names[2]: drained})
    assert {name: (task, restart.cause) for name, (task, restart) in attempts.items()} == {
        names[0]: ("worker-1", DELETED),
        names[1]: ("worker-1", "its node is lost, or must not run pods"),
        names[2]: ("worker-1", "disrupted: EvictionByEvictionAPI"),
    }
    for pods in ([current], []):  # even before the next pod is created
        snapshot = RunSnapshot(
            "digits", [job("worker", 2)], pods, past_attempts={"worker-1": [restart for _, restart in attempts.values()]}
        )
        assert [(one.attempt, one.cause) for one in status(snapshot, NOW).tasks[1].restarts] == [
            (1, DELETED),
            (2, "its node is lost, or must not run pods"),
            (3, "disrupted: EvictionByEvictionAPI"),
        ]


def test_a_pod_that_was_just_created_is_not_deleted() -> None:
    before = owned(running("worker"))
    events = [
        created_event("digits-worker-0-aaaaa", "2026-01-01T00:08:00Z"),
        created_event("digits-worker-1-bbbbb", "2026-01-01T00:08:00Z"),
    ]
    assert past_attempts.attempts(job("worker", 2), events, [before], {before["metadata"]["name"]: before}) == {}


def test_a_pod_that_was_seen_and_is_missing_is_deleted_even_without_an_event() -> None:
    ours, others = owned(running("worker", 7)), owned(running("worker", 8), by="another Job")
    succeeded = owned(ended("worker", 0, 9))
    before = {one["metadata"]["name"]: one for one in (ours, others, succeeded)}
    ((task, restart),) = past_attempts.attempts(job("worker", 20), [], [], before).values()
    assert (task, restart.cause, restart.exit_code) == ("worker-7", DELETED, None)
    for inactive in (job("worker", 20, COMPLETE), job("worker", 20, FAILED), job("worker", 20, suspend=True)):
        assert past_attempts.attempts(inactive, [], [], before) == {}


def test_an_attempt_that_failed_before_its_pod_was_deleted_is_reported_as_it_was_seen(golden: Golden) -> None:
    crashed = owned(ended("worker", 1, message="ValueError: no such file\n"))
    ((_, restart),) = past_attempts.attempts(job("worker"), [], [], {crashed["metadata"]["name"]: crashed}).values()
    assert restart.exit_code == 1
    golden(restart.cause)


def test_a_task_that_was_ended_with_its_run_was_not_started_again() -> None:
    """Its Job has fewer completions from then on, perhaps none."""
    before = {one["metadata"]["name"]: one for one in (owned(running("worker", 0)), owned(running("worker", 1)))}
    assert [task for task, _ in past_attempts.attempts(job("worker", 1), [], [], before).values()] == ["worker-0"]
    assert past_attempts.attempts(job("worker", 0), [], [], before) == {}
