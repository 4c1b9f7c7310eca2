"""How a run has ended whose Jobs have expired: by what its chief has written, or by its Jobs' events."""

from typing import Any

from launcher.backend.kubernetes.expired import by_events, by_run_json
from launcher.runs.status import RunStatus, State, TaskStatus
from tests.golden_messages import Golden

UNKNOWN = RunStatus("digits", "kubernetes", State.UNKNOWN, "its Jobs finished", tasks=(TaskStatus("chief", State.UNKNOWN),))
WRITTEN = {"state": "succeeded", "spec_digest": "abc-12", "step": 20, "steps": 20, "checkpoint": "/runs/digits/checkpoints/ckpt-20"}
TIMES = {"started": 100.0, "updated": 130.5}
JOBS = {"1": "digits-chief", "2": "digits-worker"}


def event(uid: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"involvedObject": {"uid": uid}, "reason": reason, "message": message}


def test_run_json_tells_how_far_it_has_come_too() -> None:
    told = by_run_json(UNKNOWN, {**WRITTEN, **TIMES}, "abc-12")
    assert told is not None
    assert (told.state, told.reason, told.step, told.checkpoint_step) == (State.SUCCEEDED, "", 20, 20)
    assert (told.started, told.ended, told.spec_digest) == (100.0, 130.5, "abc-12")
    assert [task.state for task in told.tasks] == [State.SUCCEEDED]


def test_run_json_of_a_failure_says_why_and_not_which_task_has_failed() -> None:
    told = by_run_json(UNKNOWN, {**WRITTEN, "state": "failed", "reason": "chief: loss is nan"}, "abc-12")
    assert told is not None
    assert (told.state, told.reason, told.tasks[0].state) == (State.FAILED, "chief: loss is nan", State.UNKNOWN)


def test_run_json_that_is_of_no_end_or_of_another_spec_tells_nothing() -> None:
    assert by_run_json(UNKNOWN, {}, "abc-12") is None
    assert by_run_json(UNKNOWN, {**WRITTEN, "state": "running"}, "abc-12") is None
    assert by_run_json(UNKNOWN, WRITTEN, "abc-13") is None
    assert by_run_json(UNKNOWN, {"state": "succeeded", "spec_digest": ""}, "") is None  # noted by an earlier version


def test_events_tell_it_where_each_job_has_one() -> None:
    both = [event("1", "Completed"), event("2", "Completed")]
    done = by_events(UNKNOWN, JOBS, [event("1", "SuccessfulCreate"), *both])
    assert done is not None
    assert done.state is State.SUCCEEDED
    for told in ([], both[:1], [event("3", "Completed"), *both[1:]]):
        assert by_events(UNKNOWN, JOBS, told) is None
    assert by_events(UNKNOWN, {}, both) is None


def test_one_job_that_failed_is_enough(golden: Golden) -> None:
    failed = by_events(
        UNKNOWN, JOBS, [event("2", "Completed"), event("1", "BackoffLimitExceeded", "Job has reached the specified backoff limit")]
    )
    assert failed is not None
    assert failed.state == State.FAILED
    golden(failed.reason)
