"""The attendant: it ends runs that failed or never start, stores the last lines of deleted pods, and ends when its work is done."""

from pathlib import Path
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import attendant_annotations, in_cluster
from launcher.backend.kubernetes.attendant import Attendant, attend, main, run_is_idle
from launcher.backend.kubernetes.attendant_annotations import DeletedPod, LastLines
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import ForbiddenError, TransientError
from launcher.backend.kubernetes.notifier import entries_of
from launcher.backend.kubernetes.pod_status import RunSnapshot
from launcher.backend.kubernetes.status_reader import StatusReader, relevant_pods
from launcher.errors import LauncherError
from launcher.notify.delivery import Channel
from launcher.runs.status import RunStatus, State, TaskStatus
from tests.golden_messages import Golden
from tests.launcher.backend.kubernetes import objects
from tests.launcher.backend.kubernetes.objects import COMPLETE, FAILED, NOW, job
from tests.waiting import until
from tests.webhook import serving

NAME = "digits-attendant"


class FakeCluster:
    """A namespace with one run and its attendant's Job. Patches are merged, and recorded."""

    namespace = "n"

    def __init__(self, *jobs: dict[str, Any], pods: tuple[dict[str, Any], ...] = ()) -> None:
        self.kinds: dict[str, list[dict[str, Any]]] = {"Job": [*jobs, job("attendant")], "Pod": list(pods)}
        for pod in pods:
            pod["metadata"]["labels"]["tf-launcher/cluster"] = "digits"
        self.patched: list[tuple[str, str, dict[str, Any]]] = []
        self.error: LauncherError | None = None

    def description(self) -> str:
        return "namespace n"

    def now(self) -> float:
        return NOW

    def list_with_version(self, kind: str, *_: object) -> tuple[list[dict[str, Any]], str]:
        if self.error:
            raise self.error
        return self.kinds.get(kind, []), "1"

    def list_objects(self, kind: str, *_: object, **__: object) -> list[dict[str, Any]]:
        return self.kinds.get(kind, [])

    list_or_empty = list_objects

    def watch(self, *_: object, **__: object) -> list[dict[str, Any]]:
        raise LauncherError("it may not be watched", "")

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        return next((one for one in self.list_objects(kind) if one["metadata"]["name"] == name), None)

    def nodes(self) -> list[dict[str, Any]]:
        return []

    def log(self, *_: object, **__: object) -> bytes:
        return b"2026-01-01T00:09:00.1Z one\n2026-01-01T00:09:01.1Z two\n"

    def follow_log(self, *_: object, **__: object) -> bytes:
        raise LauncherError("the pod is deleted", "")

    def patch(self, kind: str, name: str, patch: dict[str, Any], *, subresource: str = "") -> None:
        self.patched.append((f"{kind}/{subresource}".rstrip("/"), name, patch))
        current = self.get(kind, name)
        assert current is not None
        if "metadata" in patch:
            current["metadata"].setdefault("annotations", {}).update(patch["metadata"]["annotations"])
        current.setdefault("spec", {}).update(patch.get("spec", {}))

    @property
    def own(self) -> dict[str, Any]:
        return self.kinds["Job"][-1]


def new_attendant(cluster: FakeCluster, start_timeout: float = 600) -> Attendant:
    return Attendant(cast("Cluster", cluster), "digits", 5, start_timeout)


def test_the_end_of_a_successful_run_is_recorded_and_the_attendant_is_done() -> None:
    cluster = FakeCluster(job("chief", 1, COMPLETE), job("ps", 1, COMPLETE), pods=(objects.ended("chief", 0), objects.ended("ps", 0)))
    attendant = new_attendant(cluster)
    assert not attendant.is_done()
    assert list(attendant.reconcile()) == ["digits has succeeded"]
    assert attendant.is_done()
    recorded = attendant_annotations.final(cluster.own)
    assert recorded is not None
    assert (recorded.state, [task.name for task in recorded.tasks]) == (State.SUCCEEDED, ["chief", "ps-0"])
    assert [(kind, name) for kind, name, _ in cluster.patched] == [("Job", NAME)]


def test_the_remaining_jobs_of_a_failed_run_are_suspended_and_awaited(golden: Golden) -> None:
    cluster = FakeCluster(job("chief", 1, FAILED), job("ps"), pods=(objects.ended("chief", 2), objects.running("ps")))
    attendant = new_attendant(cluster)
    messages = list(attendant.reconcile())
    golden(messages[-1])
    assert ("Job", "digits-ps", {"spec": {"suspend": True}}) in cluster.patched
    assert not attendant.is_done()  # the pod of its ps still saves
    cluster.kinds["Pod"].pop()
    replacement = new_attendant(cluster)  # in another pod, as the node of the first was lost
    assert list(replacement.reconcile()) == []
    assert replacement.is_done()


def test_a_run_that_never_starts_is_suspended_and_reported_as_failed_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    waiting = objects.pod("chief", 0, "Pending", waiting={"reason": "ImagePullBackOff", "message": "no such image"})
    cluster = FakeCluster(job("chief"), job("ps"), pods=(waiting, objects.running("ps")))
    attendant = new_attendant(cluster, start_timeout=100)
    assert list(attendant._record_end(RunStatus("digits", "kubernetes", State.FAILED, "late"))) == ["digits has failed: late"]
    cluster = FakeCluster(job("chief"), job("ps"), pods=(waiting, objects.running("ps")))
    attendant = new_attendant(cluster, start_timeout=100)
    monkeypatch.setattr(attendant._reconciler, "observed_start_failure", lambda *_: "not started within limits.start_timeout (100 s)")
    messages = list(attendant.reconcile())
    assert "digits has failed: not started within limits.start_timeout (100 s)" in messages
    assert [(name, patch) for _, name, patch in cluster.patched if "spec" in patch] == [
        ("digits-chief", {"spec": {"suspend": True}}),
        ("digits-ps", {"spec": {"suspend": True}}),
    ]
    cluster.kinds["Pod"].clear()
    status = StatusReader(cast("Cluster", cluster), "digits").status()  # as a launcher sees it later
    assert status is not None
    assert status.state == State.FAILED
    golden(status.reason)


def test_it_is_done_once_the_webhook_has_the_message_and_another_attendant_sends_it_no_more(tmp_path: Path) -> None:
    cluster = FakeCluster(job("chief", 1, COMPLETE), pods=(objects.ended("chief", 0),))
    with serving(503, 200) as server:
        (tmp_path / "url").write_text(server.address)
        webhook = Channel("webhook", url_file=str(tmp_path / "url"), allow_http=True)
        attendant = Attendant(cast("Cluster", cluster), "digits", 5, 600, webhook)

        def is_done() -> bool:
            list(attendant.reconcile())
            return attendant.is_done()

        until("the attendant to be done", is_done, seen=lambda: server.received)
        another = Attendant(cast("Cluster", cluster), "digits", 5, 600, webhook)
        assert list(another.reconcile()) == []
        assert another.is_done()
        assert [message["event"] for _, _, message in server.received] == ["succeeded", "succeeded"]  # the server refused the first
    assert [entry["state"] for entry in entries_of(cluster.own)] == ["sent"]


def test_a_run_that_a_user_has_suspended_is_not_changed() -> None:
    cluster = FakeCluster(job("chief", suspend=True))
    attendant = new_attendant(cluster)
    assert list(attendant.reconcile()) == []
    assert not attendant.is_done()
    assert cluster.patched == []


def test_the_last_lines_of_a_deleted_pod_are_stored() -> None:
    cluster = FakeCluster(job("chief"), pods=(objects.running("chief"),))
    attendant = new_attendant(cluster)
    list(attendant.reconcile())
    cluster.kinds["Pod"].clear()
    attendant._status_reader._next = 0.0
    attendant._status_reader._informer.poll_soon()
    list(attendant.reconcile())
    (deleted,) = attendant_annotations.deleted_pods(cluster.own)
    assert deleted.task == "chief"
    assert deleted.lines == ("2026-01-01T00:09:00.1Z one", "2026-01-01T00:09:01.1Z two")
    assert list(new_attendant(cluster).reconcile()) == []  # a second attendant keeps them
    assert attendant_annotations.deleted_pods(cluster.own) == [deleted]


def test_the_last_lines_of_a_pod_of_a_run_that_has_ended_are_stored_before_the_attendant_ends() -> None:
    ps = objects.running("ps")
    cluster = FakeCluster(job("chief", 1, FAILED), job("ps"), pods=(objects.ended("chief", 2), ps))
    attendant = new_attendant(cluster)
    list(attendant.reconcile())
    cluster.log = lambda *_, **__: b"2026-01-01T00:09:02.1Z asked to stop\n"  # type: ignore[method-assign]
    ps["metadata"]["deletionTimestamp"], ps["status"]["phase"] = "2026-01-01T00:09:30Z", "Failed"  # the object still exists
    attendant._status_reader._next = 0.0
    attendant._status_reader._informer.poll_soon()
    list(attendant.reconcile())
    assert attendant.is_done()
    (deleted,) = attendant_annotations.deleted_pods(cluster.own)
    assert (deleted.task, deleted.lines[-1]) == ("ps-0", "2026-01-01T00:09:02.1Z asked to stop")
    assert len(deleted.lines) == 3


def test_the_newest_last_lines_are_stored_up_to_a_size() -> None:
    pods = [DeletedPod(f"digits-worker-{i}-abc", f"worker-{i}", tuple(f"{line} {'x' * 600}" for line in range(30))) for i in range(40)]
    attendant_job = {"metadata": {"annotations": attendant_annotations.lines_annotation(pods)}}
    assert len(attendant_job["metadata"]["annotations"][attendant_annotations.LINES_ANNOTATION]) < 110_000
    stored = attendant_annotations.deleted_pods(attendant_job)
    assert 5 < len(stored) < 40
    assert stored[-1].name == "digits-worker-39-abc"
    assert [line.partition(" ")[0] for line in stored[-1].lines] == [str(line) for line in range(10, 30)]
    assert attendant_annotations.deleted_pods({"metadata": {"annotations": {attendant_annotations.LINES_ANNOTATION: "[1]"}}}) == []


@pytest.mark.parametrize("count", [1000, 4000])
def test_the_end_of_a_run_with_many_tasks_is_stored_without_their_reasons_or_without_them(count: int) -> None:
    tasks = tuple(TaskStatus(f"worker-{i}", State.SUCCEEDED, "x" * 200) for i in range(count))
    annotation = attendant_annotations.status_annotation(RunStatus("digits", "kubernetes", State.SUCCEEDED, step=7, tasks=tasks))
    assert len(annotation[attendant_annotations.STATUS_ANNOTATION]) < 120_000
    stored = attendant_annotations.final({"metadata": {"annotations": annotation}})
    assert stored is not None
    assert (stored.state, stored.step) == (State.SUCCEEDED, 7)
    assert stored.tasks == (tuple(TaskStatus(task.name, task.state) for task in tasks) if count == 1000 else ())


def test_a_recorded_end_does_not_count_once_the_run_s_jobs_run_again() -> None:
    cluster = FakeCluster(job("chief", suspend=True))
    cluster.own["metadata"]["annotations"] |= attendant_annotations.status_annotation(
        RunStatus("digits", "kubernetes", State.FAILED, "late")
    )
    status = StatusReader(cast("Cluster", cluster), "digits").status()
    assert status is not None
    assert status.reason == "late"
    cluster.kinds["Job"][0]["spec"]["suspend"] = False
    status = StatusReader(cast("Cluster", cluster), "digits").status()
    assert status is not None
    assert status.state is State.PENDING


def test_the_attendant_s_own_pod_on_a_lost_node_is_relevant_and_keeps_its_job_busy() -> None:
    own, other = objects.running("attendant"), objects.running("attendant")
    own["metadata"] |= {"deletionTimestamp": "2026-01-01T00:09:30Z", "name": "old"}
    assert relevant_pods([own, other]) == [own]
    complete = [job("chief", 1, COMPLETE)]
    assert run_is_idle(RunSnapshot("digits", complete))
    assert not run_is_idle(RunSnapshot("digits", complete, [own]))


def test_an_unreachable_cluster_is_tried_again_and_a_missing_right_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = FakeCluster(job("chief", 1, COMPLETE))
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            cluster.error = None

    monkeypatch.setattr("launcher.backend.kubernetes.attendant.time.sleep", wait)
    cluster.error = TransientError("the cluster does not answer", "")
    assert attend(new_attendant(cluster)) == 0
    assert capsys.readouterr().out.count("does not answer") == 1
    cluster.error = ForbiddenError("it may not list jobs", "", "{verbs: [list]}")
    assert attend(new_attendant(cluster)) == 1
    assert "it may not list jobs: the account of this pod needs {verbs: [list]}" in capsys.readouterr().out


def test_a_deleted_run_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    attendant = new_attendant(cluster)
    list(attendant.reconcile())
    monkeypatch.setattr("launcher.backend.kubernetes.attendant._DELETED_TIMEOUT", -1.0)
    assert not attendant.is_done()  # its Jobs may be created after the attendant's
    attendant._had_jobs = True
    assert attendant.is_done()


def test_lines_that_are_read_again_are_stored_once() -> None:
    lines, pod = LastLines(), objects.running("chief")
    for pieces in ([("1", b"one")], [("1", b"one"), ("2", b"two")], [("2", b"two")], []):
        lines.write(pod, pieces)
    (deleted,) = lines.pop({pod["metadata"]["name"]: pod})
    assert deleted.lines == ("1 one", "2 two")


def test_outside_a_pod_it_names_the_missing_account(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    monkeypatch.setattr(in_cluster, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr("sys.argv", ["attendant", "digits", "--node-lost", "60", "--start-timeout", "600"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert main() == 1
    assert "no service account" in capsys.readouterr().out


def test_only_pods_with_output_have_last_lines() -> None:
    lines, pod = LastLines(), objects.running("chief")
    name = pod["metadata"]["name"]
    assert lines.pop({name: pod}) == []
    lines.write(pod, [(f"{number:02}", b"\xff line") for number in range(30)])
    (deleted,) = lines.pop({name: pod})
    assert (deleted.task, deleted.lines[0], len(deleted.lines)) == ("chief", "10 \ufffd line", 20)
    assert lines.pop({name: pod}) == []


def test_a_run_is_attended_while_its_attendant_has_not_failed() -> None:
    cluster = FakeCluster(job("chief"))
    for conditions, attended in (((), True), ((FAILED,), False)):
        cluster.own["status"]["conditions"] = list(conditions)
        status_reader = StatusReader(cast("Cluster", cluster), "digits")
        status_reader.status()
        assert status_reader.is_attended() is attended
    cluster.kinds["Job"].pop()
    status_reader = StatusReader(cast("Cluster", cluster), "digits")
    status_reader.status()
    assert not status_reader.is_attended()
