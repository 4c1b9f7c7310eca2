"""Whether a run's data is where it was, by the claim that is there."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import inventory, pod_status, run_record
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.pod_status import ClusterSnapshot
from launcher.backend.kubernetes.run_context import Differences, ObjectRef, RunContext
from launcher.backend.kubernetes.task_events import RunEvents
from launcher.runs.status import RunStatus, State, TaskStatus
from tests.golden_messages import Golden


def claim(**head: Any) -> dict[str, Any]:
    return {"metadata": {"name": "digits", "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z", **head}}


@pytest.mark.parametrize(
    "there, code, words",
    [
        (claim(), None, ""),
        (None, "deleted", "the claim digits was deleted"),
        (claim(deletionTimestamp="2026-01-01T00:00:00Z"), "deleting", "the claim digits is being deleted"),
        (claim(uid="2"), "replaced", "created again (created 2026-01-01T00:00:00Z)"),
        (claim(uid="2", deletionTimestamp="2026-01-01T00:00:00Z"), "replaced", "created again"),
    ],
)
def test_a_claim_that_is_not_the_runs_any_more(there: dict[str, Any] | None, code: str | None, words: str) -> None:
    loss = inventory.loss("digits", "1", there)
    assert (loss.code if loss else None) == code
    assert loss is None or words in loss.message


def test_the_claim_is_that_of_the_spec_that_the_run_was_started_with() -> None:
    assert run_record.claim_name("digits", {"data": {"spec.json": '{"kubernetes": {"claim": "team"}}'}}) == "team"
    assert run_record.claim_name("digits", {"data": {"spec.json": '{"kubernetes": {"claim": null}}'}}) == "digits"


TASKS = ("chief", "worker-0", "worker-1", "evaluator")
JOBS = {role: ObjectRef("Job", f"digits-{role}", role) for role in ("chief", "worker", "evaluator")}


def told(found: Differences, *tasks: str, state: State = State.RUNNING) -> RunStatus:
    there = tuple(TaskStatus(task, state) for task in tasks)
    found = replace(found, reason=inventory.reason("digits", found.deleted, found.unlabelled, "team-a"))
    return RunContext(differences=found).add_to(RunStatus("digits", "kubernetes", state, eta=840.0, tasks=there))


def test_a_run_without_the_job_of_its_workers_is_not_running() -> None:
    run = told(Differences(deleted=(JOBS["worker"], ObjectRef("ConfigMap", "digits-cluster", "c")), tasks=TASKS), "chief", "evaluator")
    assert (run.state, run.eta, run.missing) == (State.PENDING, None, ("job/digits-worker", "configmap/digits-cluster"))
    assert run.reason.startswith(
        "job/digits-worker, configmap/digits-cluster were deleted: `launcher down digits --on kubernetes` and another `up`"
    )
    assert [(task.name, task.state) for task in run.tasks if task.reason] == [("worker-0", State.STOPPED), ("worker-1", State.STOPPED)]
    assert [task.name for task in run.tasks] == list(TASKS)


def test_a_run_that_still_makes_steps_runs() -> None:
    run = told(Differences(deleted=(ObjectRef("Service", "digits", "s"), JOBS["evaluator"]), tasks=TASKS), *TASKS[:3])
    assert (run.state, run.eta, run.missing) == (State.RUNNING, 840.0, ("service/digits", "job/digits-evaluator"))


def test_a_job_without_labels_is_told_with_the_command_that_gives_them_back_also_of_a_run_that_was_stopped(golden: Golden) -> None:
    run = told(Differences(unlabelled=(JOBS["worker"],), tasks=TASKS), *TASKS, state=State.STOPPED)
    assert run.state is State.PENDING
    golden(run.reason)


def test_the_status_of_a_run_that_is_there_says_what_it_lacks_in_the_place_of_what_its_pods_tell() -> None:
    lacking = Differences(unlabelled=(JOBS["worker"],), tasks=TASKS, reason="job/digits-worker has lost its labels")
    run_events, chief = RunEvents(""), TaskStatus("chief", State.PENDING, "waits for a node")
    run = pod_status.run_status(ClusterSnapshot("digits", ()), (chief,), run_events, RunContext(differences=lacking))
    assert (run.state, run.reason, run.reason_task, run.missing) == (State.PENDING, lacking.reason, "", ("job/digits-worker",))


def test_a_run_that_has_ended_needs_nothing_any_more() -> None:
    assert told(Differences(deleted=(JOBS["worker"],), tasks=TASKS), *TASKS, state=State.SUCCEEDED).reason == ""
    assert told(Differences(tasks=TASKS), *TASKS).missing == ()


def test_of_a_run_that_is_being_started_nothing_is_missing() -> None:
    """Until the start has written its own, the record has what the last one made."""
    lease = {"tf-launcher/starting": json.dumps({"id": "1", "host": "another", "since": 1000.0})}
    noted = {"metadata": {"annotations": lease}, "data": {"made.json": '[["Job", "digits-chief", "1"]]', "claim": "1"}}
    nothing = SimpleNamespace(
        get=lambda kind, _: noted if kind == "ConfigMap" else None, now=lambda: 1010.0, listed=lambda *_: [], namespace="a"
    )
    assert inventory.ObjectWatch(cast("Cluster", nothing), "digits").differences() == Differences()
    nothing.now = lambda: 1_000_000.0  # anyone who started it has died over it
    assert inventory.ObjectWatch(cast("Cluster", nothing), "digits").differences().deleted == (ObjectRef("Job", "digits-chief", "1"),)


def test_a_run_without_its_attendant_trains_and_is_told_to_lack_it() -> None:
    run = told(Differences(deleted=(ObjectRef("Job", "digits-attendant", "a"),), tasks=TASKS), "chief", "worker-0", "worker-1")
    assert (run.state, run.eta, run.missing) == (State.RUNNING, 840.0, ("job/digits-attendant",))


def test_the_attendants_job_has_not_lost_its_labels() -> None:
    jobs = [
        {"metadata": {"name": name, "uid": name, "labels": {"app.kubernetes.io/component": name}}}
        for name in ("chief", "attendant", "copy")
    ]
    cluster = SimpleNamespace(listed=lambda *_: jobs)
    assert [one.name for one in inventory.labelled(cast("Cluster", cluster), "digits", "Job")] == ["chief", "attendant"]
