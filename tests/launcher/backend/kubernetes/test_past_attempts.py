"""Attempts whose pods are gone, from objects such as the API server gives."""

from typing import Any

from launcher.backend.kubernetes import past_attempts
from launcher.backend.kubernetes.pod_status import DELETED, ClusterSnapshot, status
from tests.golden_messages import Golden
from tests.launcher.backend.kubernetes.objects import COMPLETE, CREATED, FAILED, NOW, ended, event, job, running


def owned(pod: dict[str, Any], by: str = "worker", name: str = "") -> dict[str, Any]:
    """Return a pod as its Job made it."""
    pod["metadata"]["ownerReferences"] = [{"uid": by}]
    pod["metadata"]["name"] = name or pod["metadata"]["name"]
    return pod


def made(name: str, at: str = CREATED, by: str = "worker") -> dict[str, Any]:
    return event("SuccessfulCreate", f"Created pod: {name}", at, uid=by)


def test_attempts_whose_pods_are_gone_count_as_restarts() -> None:
    now = running("worker", 1, created="2026-01-01T00:09:30Z")
    names = [f"digits-worker-1-{end}" for end in ("aaaaa", "bbbbb", "ccccc")]
    events = [
        *map(made, names),
        made(now["metadata"]["name"], "2026-01-01T00:09:30Z"),
        made("digits-worker-1-zzzzz", by="the Job of an earlier run"),
        event("Killing", "Stopping container trainer", "2026-01-01T00:07:00Z", name=names[0]),
        event("TaintManagerEviction", "Marking for deletion", "2026-01-01T00:08:00Z", name=names[1]),
    ]
    drained = owned(running("worker", 1), name=names[2])
    drained["metadata"]["deletionTimestamp"] = "2026-01-01T00:09:00Z"
    drained["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
    found = past_attempts.attempts(job("worker", 2), events, [now], {names[2]: drained})
    assert {name: (task, restart.cause) for name, (task, restart) in found.items()} == {
        names[0]: ("worker-1", DELETED),
        names[1]: ("worker-1", "its node is lost, or must not run pods"),
        names[2]: ("worker-1", "moved away: EvictionByEvictionAPI"),
    }
    for pods in ([now], []):  # also before the next pod is made
        seen = ClusterSnapshot("digits", [job("worker", 2)], pods, past_attempts={"worker-1": [restart for _, restart in found.values()]})
        assert [(one.attempt, one.cause) for one in status(seen, NOW).tasks[1].restarts] == [
            (1, DELETED),
            (2, "its node is lost, or must not run pods"),
            (3, "moved away: EvictionByEvictionAPI"),
        ]


def test_a_pod_that_was_just_made_is_not_gone() -> None:
    before = owned(running("worker"))
    events = [made("digits-worker-0-aaaaa", "2026-01-01T00:08:00Z"), made("digits-worker-1-bbbbb", "2026-01-01T00:08:00Z")]
    assert past_attempts.attempts(job("worker", 2), events, [before], {before["metadata"]["name"]: before}) == {}


def test_who_saw_a_pod_knows_that_it_is_gone_though_no_event_tells() -> None:
    ours, others = owned(running("worker", 7)), owned(running("worker", 8), by="another Job")
    done = owned(ended("worker", 0, 9))
    before = {one["metadata"]["name"]: one for one in (ours, others, done)}
    ((task, restart),) = past_attempts.attempts(job("worker", 20), [], [], before).values()
    assert (task, restart.cause, restart.exit_code) == ("worker-7", DELETED, None)
    for over in (job("worker", 20, COMPLETE), job("worker", 20, FAILED), job("worker", 20, suspend=True)):
        assert past_attempts.attempts(over, [], [], before) == {}


def test_an_attempt_that_had_failed_before_its_pod_went_is_told_as_it_was_seen(golden: Golden) -> None:
    crashed = owned(ended("worker", 1, message="ValueError: no such file\n"))
    ((_, restart),) = past_attempts.attempts(job("worker"), [], [], {crashed["metadata"]["name"]: crashed}).values()
    assert restart.exit_code == 1
    golden(restart.cause)


def test_a_task_that_was_ended_with_its_run_was_not_started_again() -> None:
    """Its Job has fewer completions from then on, none perhaps."""
    before = {one["metadata"]["name"]: one for one in (owned(running("worker", 0)), owned(running("worker", 1)))}
    assert [task for task, _ in past_attempts.attempts(job("worker", 1), [], [], before).values()] == ["worker-0"]
    assert past_attempts.attempts(job("worker", 0), [], [], before) == {}
