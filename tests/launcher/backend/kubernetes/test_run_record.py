"""The launcher that starts a run, from the run's record in the cluster."""

import json
import os
import socket
import subprocess
import sys
import time
from typing import Any, cast

import pytest
from kubernetes.client.exceptions import ApiException

from launcher.backend.kubernetes import run_record
from launcher.backend.kubernetes.client import Cluster, as_json
from launcher.backend.kubernetes.errors import TransientError
from launcher.runs.status import EndedAttempt, RunStatus, State, TaskStatus
from tests.golden_messages import Golden


def leased(**lease: Any) -> dict[str, Any]:
    return {"metadata": {"annotations": {"tf-launcher/starting": as_json(lease)}}}


def test_the_launcher_that_starts_the_run_is_named_with_its_machine(golden: Golden) -> None:
    own = leased(host=socket.gethostname(), since=time.time() - 7, **run_record._process(os.getpid()))
    golden(run_record.starting_launcher(own, time.time()), host=socket.gethostname())
    assert run_record.starting_launcher(leased(host="elsewhere", since=time.time() - 7), time.time()).startswith(
        "started by `launcher up` on elsewhere"
    )


def test_a_launcher_that_was_killed_during_the_start_is_not_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        lease = {"host": socket.gethostname(), "since": time.time(), **run_record._process(process.pid)}
        assert run_record.starting_launcher(leased(**lease), time.time())
        process.kill()
    assert run_record.starting_launcher(leased(**lease), time.time()) == ""
    assert run_record.starting_launcher(leased(host="elsewhere", since=time.time() - 700), time.time()) == ""


def test_a_launcher_in_another_container_of_the_same_host_name_is_not_taken_for_killed() -> None:
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True, timeout=10, check=False).returncode:
        pytest.skip("this machine does not allow a PID namespace (unshare)")
    program = "import time; from launcher.backend.kubernetes import run_record; print(run_record._lease_text(run_record.StartLease('run', 'id', None), time.time()), flush=True); input()"
    with subprocess.Popen([*unshare, sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lease = json.loads(process.stdout.readline())
        # The container has its own process ids: outside, this one belongs to no process or to another.
        assert (lease["host"], lease["pid"]) == (socket.gethostname(), 1)
        assert run_record.starting_launcher(leased(**lease), time.time()).startswith("started by `launcher up` on")
        process.kill()


@pytest.mark.parametrize("record", [None, {}, {"metadata": {}}, leased(host="elsewhere"), leased(since="yesterday")])
def test_a_record_without_a_valid_lease_allows_a_start(record: dict[str, Any] | None) -> None:
    assert run_record.starting_launcher(record, time.time()) == ""


class ClusterWithRecord:
    """A cluster that has only the record of a run."""

    def __init__(self, record: dict[str, Any] | None, *, changes: int = 0) -> None:
        self.record, self.changes = record, changes  # by others, each before the next patch

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        assert (kind, name) == ("ConfigMap", "digits-record")
        return self.record

    def patch(self, kind: str, name: str, patch: dict[str, Any]) -> None:
        record = self.get(kind, name)
        assert record is not None
        if self.changes or patch["metadata"]["resourceVersion"] != record["metadata"]["resourceVersion"]:
            self.changes -= 1
            record["metadata"]["resourceVersion"] += "'"
            raise TransientError("changing it: it has been modified", "try again") from ApiException(status=409)
        record["data"] |= patch["data"]

    def description(self) -> str:
        return "namespace team"


@pytest.mark.parametrize(
    "record, lost",
    [
        (leased(id="ours"), ""),
        (leased(id="theirs"), "another `launcher up` has taken over the start of digits in namespace team"),
        ({"metadata": {}}, "digits in namespace team was stopped while it was being started"),
        (None, "digits in namespace team was stopped while it was being started"),
    ],
    ids=["ours", "another's", "no lease", "no record"],
)
def test_a_lease_is_held_until_another_launcher_takes_it_or_the_run_is_stopped(record: dict[str, Any] | None, lost: str) -> None:
    cluster, lease = cast("Cluster", ClusterWithRecord(record)), run_record.StartLease("digits", "ours", None)
    assert run_record.is_held(cluster, lease) == (not lost)
    if not lost:
        assert run_record.verify(cluster, lease) == record
        return
    with pytest.raises(run_record.LeaseLostError, match=lost):
        run_record.verify(cluster, lease)


def test_a_stored_status_keeps_all_that_is_known_of_its_tasks() -> None:
    restarts = (EndedAttempt(7.0, 1, 137, "out of memory"),)
    tasks = (
        TaskStatus("chief", State.FAILED, "exit code 2", exit_code=2, restarts=restarts, started=0.0, step=0),
        TaskStatus("ps-0", State.STOPPED),
    )
    status = RunStatus("digits", "kubernetes", State.FAILED, tasks=tasks)
    assert run_record.status_from_json(run_record.status_to_json(status)) == status


@pytest.mark.parametrize("count, attempts", [(3_900, 5), (10_000, 0), (20_000, 0)])
def test_a_status_of_many_tasks_fits_into_the_record(count: int, attempts: int) -> None:
    restarts = tuple(
        EndedAttempt(1.7e9, number, 143, "the node was drained: a pod on another node replaces it") for number in range(attempts)
    )
    tasks = tuple(
        TaskStatus(f"worker-{index}", State.FAILED, "its node is lost", restarts=restarts, started=1.7e9) for index in range(count)
    )
    text = run_record.status_to_json(RunStatus("digits", "kubernetes", State.FAILED, "the chief failed", step=7, tasks=tasks))
    assert len(text) <= 700_000
    stored = run_record.status_from_json(text)
    assert stored is not None
    assert (stored.state, stored.reason, stored.step) == (State.FAILED, "the chief failed", 7)
    assert [(task.name, task.state) for task in stored.tasks] == [(task.name, task.state) for task in tasks if count <= 10_000]


def test_the_end_of_a_start_is_not_recorded_as_that_of_the_next() -> None:
    fake = ClusterWithRecord({"metadata": {"resourceVersion": "1"}, "data": {"start": "second"}}, changes=2)
    cluster = cast("Cluster", fake)
    failed, succeeded = (RunStatus("digits", "kubernetes", state) for state in (State.FAILED, State.SUCCEEDED))
    for write in (run_record.write_end, run_record.update_end, run_record.write_stopping):
        write(cluster, failed, "first")  # by a watcher, or a stop, that has seen only the first
    assert fake.record is not None
    assert fake.record["data"] == {"start": "second"}
    run_record.write_end(cluster, succeeded, "second")
    run_record.write_end(cluster, failed, "second")
    assert run_record.final(fake.record) == succeeded
    run_record.update_end(cluster, failed, "second")
    assert run_record.final(fake.record) == failed
