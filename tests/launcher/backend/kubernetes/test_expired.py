"""The end of a run whose Jobs have expired, from its chief's run.json or its Jobs' events."""

from typing import Any

from launcher.backend.kubernetes.expired import by_events, by_run_json
from launcher.runs.status import RunStatus, State, TaskStatus
from tests.golden_messages import Golden

UNKNOWN = RunStatus("digits", "kubernetes", State.UNKNOWN, "its Jobs finished", tasks=(TaskStatus("chief", State.UNKNOWN),))
RUN_JSON = {"state": "succeeded", "spec_digest": "abc-12", "step": 20, "steps": 20, "checkpoint": "/runs/digits/checkpoints/ckpt-20"}
TIMES = {"started": 100.0, "updated": 130.5}
JOBS = {"1": "digits-chief", "2": "digits-worker"}


def event(uid: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"involvedObject": {"uid": uid}, "reason": reason, "message": message}


def test_run_json_has_the_progress_of_the_run_too() -> None:
    status = by_run_json(UNKNOWN, {**RUN_JSON, **TIMES}, "abc-12")
    assert status is not None
    assert (status.state, status.reason, status.step, status.checkpoint_step) == (State.SUCCEEDED, "", 20, 20)
    assert (status.started, status.ended, status.spec_digest) == (100.0, 130.5, "abc-12")
    assert [task.state for task in status.tasks] == [State.SUCCEEDED]


def test_run_json_of_a_failure_has_the_reason_but_not_the_failed_task() -> None:
    status = by_run_json(UNKNOWN, {**RUN_JSON, "state": "failed", "reason": "chief: loss is nan"}, "abc-12")
    assert status is not None
    assert (status.state, status.reason, status.tasks[0].state) == (State.FAILED, "chief: loss is nan", State.UNKNOWN)


def test_run_json_of_an_unfinished_run_or_of_another_spec_is_ignored() -> None:
    assert by_run_json(UNKNOWN, {}, "abc-12") is None
    assert by_run_json(UNKNOWN, {**RUN_JSON, "state": "running"}, "abc-12") is None
    assert by_run_json(UNKNOWN, RUN_JSON, "abc-13") is None
    assert by_run_json(UNKNOWN, {"state": "succeeded", "spec_digest": ""}, "") is None  # written by an earlier version


def test_events_decide_only_if_each_job_has_one() -> None:
    both = [event("1", "Completed"), event("2", "Completed")]
    succeeded = by_events(UNKNOWN, JOBS, [event("1", "SuccessfulCreate"), *both])
    assert succeeded is not None
    assert succeeded.state is State.SUCCEEDED
    for events in ([], both[:1], [event("3", "Completed"), *both[1:]]):
        assert by_events(UNKNOWN, JOBS, events) is None
    assert by_events(UNKNOWN, {}, both) is None


def test_one_job_that_failed_is_enough(golden: Golden) -> None:
    failed = by_events(
        UNKNOWN, JOBS, [event("2", "Completed"), event("1", "BackoffLimitExceeded", "Job has reached the specified backoff limit")]
    )
    assert failed is not None
    assert failed.state == State.FAILED
    golden(failed.reason)
