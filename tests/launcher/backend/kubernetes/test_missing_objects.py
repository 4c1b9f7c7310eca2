"""Objects that a run has lost, e.g. its claim or a Job, and how its status reports them."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import missing_objects, pod_status, run_record
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import ForbiddenError
from launcher.backend.kubernetes.pod_status import RunSnapshot
from launcher.backend.kubernetes.run_context import MissingObjects, ObjectRef, RunContext
from launcher.backend.kubernetes.task_events import TaskEvents
from launcher.runs.status import RunStatus, State, TaskStatus
from tests.golden_messages import Golden


def claim(**head: Any) -> dict[str, Any]:
    return {"metadata": {"name": "digits", "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z", **head}}


@pytest.mark.parametrize(
    "current, code, message",
    [
        (claim(), None, ""),
        (None, "deleted", "the claim digits was deleted"),
        (claim(deletionTimestamp="2026-01-01T00:00:00Z"), "deleting", "the claim digits is being deleted"),
        (claim(uid="2"), "replaced", "created again (created 2026-01-01T00:00:00Z)"),
        (claim(uid="2", deletionTimestamp="2026-01-01T00:00:00Z"), "replaced", "created again"),
    ],
)
def test_a_claim_that_was_deleted_or_replaced_is_a_loss(current: dict[str, Any] | None, code: str | None, message: str) -> None:
    loss = missing_objects.data_loss("digits", "1", current)
    assert (loss.code if loss else None) == code
    assert loss is None or message in loss.message


def test_the_claim_is_the_one_in_the_spec_that_the_run_was_started_with() -> None:
    assert run_record.claim_name("digits", {"data": {"spec.json": '{"kubernetes": {"claim": "team"}}'}}) == "team"
    assert run_record.claim_name("digits", {"data": {"spec.json": '{"kubernetes": {"claim": null}}'}}) == "digits"


TASKS = ("chief", "worker-0", "worker-1", "evaluator")
JOBS = {role: ObjectRef("Job", f"digits-{role}", role) for role in ("chief", "worker", "evaluator")}


def status_with(missing: MissingObjects, *tasks: str, state: State = State.RUNNING) -> RunStatus:
    statuses = tuple(TaskStatus(task, state) for task in tasks)
    missing = replace(missing, reason=missing_objects.reason("digits", missing.deleted, missing.unlabelled, "team-a"))
    return RunContext(missing_objects=missing).add_to(RunStatus("digits", "kubernetes", state, eta=840.0, tasks=statuses))


def test_a_run_without_the_job_of_its_workers_is_not_running() -> None:
    run = status_with(
        MissingObjects(deleted=(JOBS["worker"], ObjectRef("ConfigMap", "digits-cluster", "c")), tasks=TASKS), "chief", "evaluator"
    )
    assert (run.state, run.eta, run.missing) == (State.PENDING, None, ("job/digits-worker", "configmap/digits-cluster"))
    assert run.reason.startswith(
        "job/digits-worker, configmap/digits-cluster were deleted: `launcher down digits --on kubernetes` and another `up`"
    )
    assert [(task.name, task.state) for task in run.tasks if task.reason] == [("worker-0", State.STOPPED), ("worker-1", State.STOPPED)]
    assert [task.name for task in run.tasks] == list(TASKS)


def test_a_run_that_still_makes_steps_is_running() -> None:
    run = status_with(MissingObjects(deleted=(ObjectRef("Service", "digits", "s"), JOBS["evaluator"]), tasks=TASKS), *TASKS[:3])
    assert (run.state, run.eta, run.missing) == (State.RUNNING, 840.0, ("service/digits", "job/digits-evaluator"))


def test_a_job_without_labels_comes_with_the_command_that_restores_them_also_in_a_stopped_run(golden: Golden) -> None:
    run = status_with(MissingObjects(unlabelled=(JOBS["worker"],), tasks=TASKS), *TASKS, state=State.STOPPED)
    assert run.state is State.PENDING
    golden(run.reason)


def test_the_reason_of_a_run_names_lost_objects_instead_of_the_reasons_of_its_pods() -> None:
    missing = MissingObjects(unlabelled=(JOBS["worker"],), tasks=TASKS, reason="job/digits-worker has lost its labels")
    task_events, chief = TaskEvents(""), TaskStatus("chief", State.PENDING, "waits for a node")
    run = pod_status.run_status(RunSnapshot("digits", ()), (chief,), task_events, RunContext(missing_objects=missing))
    assert (run.state, run.reason, run.reason_task, run.missing) == (State.PENDING, missing.reason, "", ("job/digits-worker",))


def test_a_run_that_has_ended_misses_nothing() -> None:
    assert status_with(MissingObjects(deleted=(JOBS["worker"],), tasks=TASKS), *TASKS, state=State.SUCCEEDED).reason == ""
    assert status_with(MissingObjects(tasks=TASKS), *TASKS).missing == ()


def test_a_run_that_is_being_started_misses_nothing() -> None:
    """Until the start has written the record, it has the objects of the previous start."""
    lease = {"tf-launcher/starting": json.dumps({"id": "1", "host": "another", "since": 1000.0})}
    record = {"metadata": {"annotations": lease}, "data": {"made.json": '[["Job", "digits-chief", "1"]]', "claim": "1"}}
    empty = SimpleNamespace(
        get=lambda kind, _: record if kind == "ConfigMap" else None, now=lambda: 1010.0, list_objects=lambda *_: [], namespace="a"
    )
    assert missing_objects.MissingObjectsWatch(cast("Cluster", empty), "digits").check() == MissingObjects()
    empty.now = lambda: 1_000_000.0  # long after the lease has expired
    assert missing_objects.MissingObjectsWatch(cast("Cluster", empty), "digits").check().deleted == (ObjectRef("Job", "digits-chief", "1"),)


def test_a_user_who_may_not_read_the_attendant_s_role_still_sees_that_a_job_is_missing() -> None:
    recorded = [["Job", "digits-chief", "1"], ["Role", "digits-attendant", "2"]]
    record = {"metadata": {}, "data": {"made.json": json.dumps(recorded)}}

    def get(kind: str, _: str) -> Any:
        if kind == "Role":
            raise ForbiddenError("anna may not get roles", "", "")
        return record if kind == "ConfigMap" else None

    def list_objects(kind: str, _: object) -> list[Any]:
        return [] if kind == "Job" else get(kind, "")

    cluster = SimpleNamespace(get=get, list_objects=list_objects, list_or_empty=lambda *_: [], now=lambda: 0.0, namespace="a")
    missing = missing_objects.MissingObjectsWatch(cast("Cluster", cluster), "digits").check()
    assert missing.deleted == (ObjectRef("Job", "digits-chief", "1"),)


def test_a_run_without_its_attendant_is_running_and_misses_it() -> None:
    run = status_with(MissingObjects(deleted=(ObjectRef("Job", "digits-attendant", "a"),), tasks=TASKS), "chief", "worker-0", "worker-1")
    assert (run.state, run.eta, run.missing) == (State.RUNNING, 840.0, ("job/digits-attendant",))


def test_the_attendant_s_job_is_one_of_the_labelled_jobs() -> None:
    jobs = [
        {"metadata": {"name": name, "uid": name, "labels": {"app.kubernetes.io/component": name}}}
        for name in ("chief", "attendant", "copy")
    ]
    cluster = SimpleNamespace(list_objects=lambda *_: jobs)
    assert [one.name for one in missing_objects.labelled(cast("Cluster", cluster), "digits", "Job")] == ["chief", "attendant"]


def test_the_record_is_read_again_once_the_run_has_other_jobs() -> None:
    records = iter({"metadata": {}, "data": {"start": start}} for start in ("first", "second"))
    cluster = SimpleNamespace(get=lambda kind, _: next(records) if kind == "ConfigMap" else None, now=lambda: 0.0, namespace="a")
    watch = missing_objects.MissingObjectsWatch(cast("Cluster", cluster), "digits")
    for uid, start in (("1", "first"), ("1", "first"), ("2", "second")):
        watch.check([{"metadata": {"uid": uid}}])
        assert (watch.record or {})["data"]["start"] == start
