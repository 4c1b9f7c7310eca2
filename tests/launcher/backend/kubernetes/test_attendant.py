"""An attendant by itself: it ends what failed or never starts, keeps what is lost with pods, and knows when nothing is left to do."""

from pathlib import Path
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import attendant_notes, in_cluster
from launcher.backend.kubernetes.attendant import Attendant, attend, is_idle, main
from launcher.backend.kubernetes.attendant_notes import DeletedPod, LastLines
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import ForbiddenError, UnreachableError
from launcher.backend.kubernetes.notifier import entries_of
from launcher.backend.kubernetes.pod_status import ClusterSnapshot
from launcher.backend.kubernetes.status_source import Watcher, relevant_pods
from launcher.errors import LauncherError
from launcher.notify.outbox import Channel
from launcher.runs.status import RunStatus, State, TaskStatus
from tests.golden_messages import Golden
from tests.launcher.backend.kubernetes import objects
from tests.launcher.backend.kubernetes.objects import COMPLETE, FAILED, NOW, job
from tests.waiting import until
from tests.webhook import serving

NAME = "digits-attendant"


class There:
    """A namespace with one run and its attendant's Job. Patches are merged, and remembered."""

    namespace = "n"

    def __init__(self, *jobs: dict[str, Any], pods: tuple[dict[str, Any], ...] = ()) -> None:
        self.kinds: dict[str, list[dict[str, Any]]] = {"Job": [*jobs, job("attendant")], "Pod": list(pods)}
        for pod in pods:
            pod["metadata"]["labels"]["tf-launcher/cluster"] = "digits"
        self.patched: list[tuple[str, str, dict[str, Any]]] = []
        self.fails: LauncherError | None = None

    def description(self) -> str:
        return "namespace n"

    def now(self) -> float:
        return NOW

    def list_with_version(self, kind: str, *_: object) -> tuple[list[dict[str, Any]], str]:
        if self.fails:
            raise self.fails
        return self.kinds.get(kind, []), "1"

    def listed(self, kind: str, *_: object, **__: object) -> list[dict[str, Any]]:
        return self.kinds.get(kind, [])

    listed_if_any = listed

    def watch(self, *_: object, **__: object) -> list[dict[str, Any]]:
        raise LauncherError("it may not be watched", "")

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        return next((one for one in self.listed(kind) if one["metadata"]["name"] == name), None)

    def nodes(self) -> list[dict[str, Any]]:
        return []

    def log(self, *_: object, **__: object) -> bytes:
        return b"2026-01-01T00:09:00.1Z one\n2026-01-01T00:09:01.1Z two\n"

    def log_to_the_end(self, *_: object, **__: object) -> bytes:
        raise LauncherError("it is gone", "")

    def patch(self, kind: str, name: str, patch: dict[str, Any], *, subresource: str = "") -> None:
        self.patched.append((f"{kind}/{subresource}".rstrip("/"), name, patch))
        there = self.get(kind, name)
        assert there is not None
        if "metadata" in patch:
            there["metadata"].setdefault("annotations", {}).update(patch["metadata"]["annotations"])
        there.setdefault("spec", {}).update(patch.get("spec", {}))

    @property
    def own(self) -> dict[str, Any]:
        return self.kinds["Job"][-1]


def attending(there: There, start_timeout: float = 600) -> Attendant:
    return Attendant(cast("Cluster", there), "digits", 5, start_timeout)


def test_a_run_that_has_succeeded_is_noted_and_nothing_is_left_to_do() -> None:
    there = There(job("chief", 1, COMPLETE), job("ps", 1, COMPLETE), pods=(objects.ended("chief", 0), objects.ended("ps", 0)))
    attendant = attending(there)
    assert not attendant.is_done()
    assert list(attendant.reconcile()) == ["digits has succeeded"]
    assert attendant.is_done()
    noted = attendant_notes.final(there.own)
    assert noted is not None
    assert (noted.state, [task.name for task in noted.tasks]) == (State.SUCCEEDED, ["chief", "ps-0"])
    assert [(kind, name) for kind, name, _ in there.patched] == [("Job", NAME)]


def test_what_a_failed_run_still_holds_is_suspended_and_waited_for(golden: Golden) -> None:
    there = There(job("chief", 1, FAILED), job("ps"), pods=(objects.ended("chief", 2), objects.running("ps")))
    attendant = attending(there)
    said = list(attendant.reconcile())
    golden(said[-1])
    assert ("Job", "digits-ps", {"spec": {"suspend": True}}) in there.patched
    assert not attendant.is_done()  # its pod saves
    there.kinds["Pod"].pop()
    after = attending(there)  # in another pod, as the node of the first was lost
    assert list(after.reconcile()) == []
    assert after.is_done()


def test_a_run_that_never_starts_is_suspended_and_told_to_have_failed_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    waiting = objects.pod("chief", 0, "Pending", waiting={"reason": "ImagePullBackOff", "message": "no such image"})
    there = There(job("chief"), job("ps"), pods=(waiting, objects.running("ps")))
    attendant = attending(there, start_timeout=100)
    assert list(attendant._record_end(RunStatus("digits", "kubernetes", State.FAILED, "late"))) == ["digits has failed: late"]
    there = There(job("chief"), job("ps"), pods=(waiting, objects.running("ps")))
    attendant = attending(there, start_timeout=100)
    monkeypatch.setattr(attendant._reconciler, "start_timeout_reason", lambda *_: "not started within limits.start_timeout (100 s)")
    said = list(attendant.reconcile())
    assert "digits has failed: not started within limits.start_timeout (100 s)" in said
    assert [(name, patch) for _, name, patch in there.patched if "spec" in patch] == [
        ("digits-chief", {"spec": {"suspend": True}}),
        ("digits-ps", {"spec": {"suspend": True}}),
    ]
    there.kinds["Pod"].clear()
    status = Watcher(cast("Cluster", there), "digits").status()  # as a launcher sees it later
    assert status is not None
    assert status.state == State.FAILED
    golden(status.reason)


def test_it_is_done_when_the_webhook_was_told_and_another_one_tells_nothing_again(tmp_path: Path) -> None:
    there = There(job("chief", 1, COMPLETE), pods=(objects.ended("chief", 0),))
    with serving(503, 200) as server:
        (tmp_path / "url").write_text(server.address)
        webhook = Channel("webhook", url_file=str(tmp_path / "url"), allow_http=True)
        attendant = Attendant(cast("Cluster", there), "digits", 5, 600, webhook)

        def is_done() -> bool:
            list(attendant.reconcile())
            return attendant.is_done()

        until("it to be done", is_done, seen=lambda: server.received)
        another = Attendant(cast("Cluster", there), "digits", 5, 600, webhook)
        assert list(another.reconcile()) == []
        assert another.is_done()
        assert [message["event"] for _, _, message in server.received] == ["succeeded", "succeeded"]  # of which the first was refused
    assert [entry["state"] for entry in entries_of(there.own)] == ["sent"]


def test_a_run_that_somebody_has_suspended_may_go_on() -> None:
    there = There(job("chief", suspend=True))
    attendant = attending(there)
    assert list(attendant.reconcile()) == []
    assert not attendant.is_done()
    assert there.patched == []


def test_the_last_lines_of_a_pod_that_goes_are_kept() -> None:
    there = There(job("chief"), pods=(objects.running("chief"),))
    attendant = attending(there)
    list(attendant.reconcile())
    there.kinds["Pod"].clear()
    attendant._watcher._next = 0.0
    attendant._watcher._source.poll_soon()
    list(attendant.reconcile())
    (gone,) = attendant_notes.deleted_pods(there.own)
    assert gone.task == "chief"
    assert gone.lines == ("2026-01-01T00:09:00.1Z one", "2026-01-01T00:09:01.1Z two")
    assert list(attending(there).reconcile()) == []  # another one adds to them
    assert attendant_notes.deleted_pods(there.own) == [gone]


def test_the_last_lines_of_a_pod_of_a_run_that_has_ended_are_kept_before_the_attendant_ends() -> None:
    ps = objects.running("ps")
    there = There(job("chief", 1, FAILED), job("ps"), pods=(objects.ended("chief", 2), ps))
    attendant = attending(there)
    list(attendant.reconcile())
    there.log = lambda *_, **__: b"2026-01-01T00:09:02.1Z asked to stop\n"  # type: ignore[method-assign]
    ps["metadata"]["deletionTimestamp"], ps["status"]["phase"] = "2026-01-01T00:09:30Z", "Failed"  # and the object is there still
    attendant._watcher._next = 0.0
    attendant._watcher._source.poll_soon()
    list(attendant.reconcile())
    assert attendant.is_done()
    (gone,) = attendant_notes.deleted_pods(there.own)
    assert (gone.task, gone.lines[-1]) == ("ps-0", "2026-01-01T00:09:02.1Z asked to stop")
    assert len(gone.lines) == 3


def test_of_last_lines_the_newest_are_kept_that_have_room() -> None:
    pods = [DeletedPod(f"digits-worker-{i}-abc", f"worker-{i}", tuple(f"{line} {'x' * 600}" for line in range(30))) for i in range(40)]
    job_ = {"metadata": {"annotations": attendant_notes.lines_annotation(pods)}}
    assert len(job_["metadata"]["annotations"][attendant_notes.LINES]) < 110_000
    kept = attendant_notes.deleted_pods(job_)
    assert 5 < len(kept) < 40
    assert kept[-1].name == "digits-worker-39-abc"
    assert [line.partition(" ")[0] for line in kept[-1].lines] == [str(line) for line in range(10, 30)]
    assert attendant_notes.deleted_pods({"metadata": {"annotations": {attendant_notes.LINES: "[1]"}}}) == []


def test_of_a_run_of_too_many_tasks_the_end_is_kept_without_them() -> None:
    tasks = tuple(TaskStatus(f"worker-{i}", State.SUCCEEDED, "x" * 200) for i in range(1000))
    made = attendant_notes.status_annotation(RunStatus("digits", "kubernetes", State.SUCCEEDED, step=7, tasks=tasks))
    assert len(made[attendant_notes.STATUS]) < 120_000
    noted = attendant_notes.final({"metadata": {"annotations": made}})
    assert noted is not None
    assert (noted.state, noted.step, noted.tasks) == (State.SUCCEEDED, 7, ())


def test_a_run_whose_jobs_are_at_work_again_is_not_what_was_noted() -> None:
    there = There(job("chief", suspend=True))
    there.own["metadata"]["annotations"] |= attendant_notes.status_annotation(RunStatus("digits", "kubernetes", State.FAILED, "late"))
    status = Watcher(cast("Cluster", there), "digits").status()
    assert status is not None
    assert status.reason == "late"
    there.kinds["Job"][0]["spec"]["suspend"] = False
    status = Watcher(cast("Cluster", there), "digits").status()
    assert status is not None
    assert status.state is State.PENDING


def test_a_pod_of_the_attendants_own_on_a_lost_node_is_told_of_and_holds_up_its_job() -> None:
    own, other = objects.running("attendant"), objects.running("attendant")
    own["metadata"] |= {"deletionTimestamp": "2026-01-01T00:09:30Z", "name": "old"}
    assert relevant_pods([own, other]) == [own]
    done = [job("chief", 1, COMPLETE)]
    assert is_idle(ClusterSnapshot("digits", done))
    assert not is_idle(ClusterSnapshot("digits", done, [own]))


def test_a_cluster_that_is_away_is_asked_again_and_a_lacking_right_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = There(job("chief", 1, COMPLETE))
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            there.fails = None

    monkeypatch.setattr("launcher.backend.kubernetes.attendant.time.sleep", wait)
    there.fails = UnreachableError("the cluster does not answer", "")
    assert attend(attending(there)) == 0
    assert capsys.readouterr().out.count("does not answer") == 1
    there.fails = ForbiddenError("it may not list jobs", "", "{verbs: [list]}")
    assert attend(attending(there)) == 1
    assert "it may not list jobs: the account of this pod needs {verbs: [list]}" in capsys.readouterr().out


def test_a_run_that_was_there_and_is_deleted_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    there = There()
    attendant = attending(there)
    list(attendant.reconcile())
    monkeypatch.setattr("launcher.backend.kubernetes.attendant._DELETED_TIMEOUT", -1.0)
    assert not attendant.is_done()  # its Jobs may be made after the attendant's
    attendant._had_jobs = True
    assert attendant.is_done()


def test_lines_that_are_read_again_are_kept_once() -> None:
    lines, pod = LastLines(), objects.running("chief")
    for pieces in ([("1", b"one")], [("1", b"one"), ("2", b"two")], [("2", b"two")], []):
        lines.write(pod, pieces)
    (kept,) = lines.pop({pod["metadata"]["name"]: pod})
    assert kept.lines == ("1 one", "2 two")


def test_outside_a_pod_it_says_where_it_belongs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    monkeypatch.setattr(in_cluster, "ACCOUNT", tmp_path)
    monkeypatch.setattr("sys.argv", ["attendant", "digits", "--node-lost", "60", "--start-timeout", "600"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert main() == 1
    assert "no service account" in capsys.readouterr().out


def test_last_lines_are_those_of_pods_that_have_written() -> None:
    lines, pod = LastLines(), objects.running("chief")
    name = pod["metadata"]["name"]
    assert lines.pop({name: pod}) == []
    lines.write(pod, [(f"{number:02}", b"\xff line") for number in range(30)])
    (gone,) = lines.pop({name: pod})
    assert (gone.task, gone.lines[0], len(gone.lines)) == ("chief", "10 \ufffd line", 20)
    assert lines.pop({name: pod}) == []


def test_a_run_is_attended_while_its_attendant_has_not_failed() -> None:
    there = There(job("chief"))
    for conditions, attended in (((), True), ((FAILED,), False)):
        there.own["status"]["conditions"] = list(conditions)
        watcher = Watcher(cast("Cluster", there), "digits")
        watcher.status()
        assert watcher.is_attended() is attended
    there.kinds["Job"].pop()
    watcher = Watcher(cast("Cluster", there), "digits")
    watcher.status()
    assert not watcher.is_attended()
