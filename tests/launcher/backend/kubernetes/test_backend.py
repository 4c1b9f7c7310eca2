"""Runs of another version of the launcher, whose specs this one does not understand, and what a watching launcher notes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import run_record, status_without_jobs
from launcher.backend.kubernetes.backend import KubernetesBackend, _limit
from launcher.backend.kubernetes.client import Cluster, as_json
from launcher.backend.kubernetes.errors import TransientError, WebhookError
from launcher.backend.kubernetes.pod_status import RunSnapshot
from launcher.backend.model import ClusterRef
from launcher.errors import LauncherError
from launcher.runs.artifacts import Artifact
from launcher.runs.status import RunStatus, State

SPEC = {"version": 1, "name": "digits", "image": "mine", "command": ["true"], "notify": {"pager": 7}}


def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubernetesBackend:
    """Return a backend with an expired run, which a newer launcher has started."""
    record: dict[str, Any] = {"metadata": {}, "data": {"spec.json": as_json(SPEC), "user": "ada"}}
    none: dict[str, Any] = {
        "list_objects": lambda *_, **__: [],
        "list_or_empty": lambda *_, **__: [],
        "list_with_version": lambda *_, **__: ([], "1"),
    }
    methods = {"now": lambda: 0.0, "user": lambda: "ada", "description": lambda: "namespace n", "nodes": list, "watch": lambda *_, **__: []}
    cluster = SimpleNamespace(context=None, namespace="n", get=lambda kind, _: record if kind == "ConfigMap" else None, **none, **methods)
    unknown = RunStatus("digits", "kubernetes", State.UNKNOWN, "its Jobs finished")
    monkeypatch.setattr(status_without_jobs, "status", lambda *_: unknown)
    backend = KubernetesBackend(tmp_path, ClusterRef(None, None))
    monkeypatch.setitem(backend._clusters, "digits", cast("Cluster", cluster))
    return backend


def test_the_status_of_a_run_of_a_newer_launcher_is_shown_with_the_reason_why_its_end_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = newer(tmp_path, monkeypatch).status("digits")
    assert status.state is State.UNKNOWN
    assert status.reason.startswith("its Jobs finished; the stored spec of digits is of another version of the launcher: notify.pager: ")


def test_data_of_a_run_of_a_newer_launcher_needs_that_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LauncherError, match="the stored spec of digits is of another version") as refused:
        newer(tmp_path, monkeypatch).fetch("digits", Artifact.MODEL)
    assert refused.value.remedy == "use the version that has started the run"


def test_a_run_of_a_newer_launcher_can_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = newer(tmp_path, monkeypatch)
    assert list(backend.finish("digits")) == []
    assert "digits" in backend._notifiers


@pytest.mark.parametrize("starts", [False, True])
def test_the_end_of_a_start_is_not_recorded_during_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, starts: bool) -> None:
    """The next start writes the record before it deletes the Jobs of the start before."""
    lease = {run_record._LEASE_ANNOTATION: as_json({"id": "second", "since": 90.0, "host": "elsewhere"})}
    record = {"metadata": {"annotations": lease if starts else {}}, "data": {"start": "second"}}
    written: list[str | None] = []
    monkeypatch.setattr(run_record, "write_end", lambda _cluster, _status, start: written.append(start))
    reconciler = SimpleNamespace(reconcile=lambda *_: [], give_up_reason=lambda *_: "")
    watched: Any = SimpleNamespace(reconciler=reconciler, cluster=SimpleNamespace(now=lambda: 100.0), record=record)
    failed = RunStatus("digits", "kubernetes", State.FAILED)
    KubernetesBackend(tmp_path, ClusterRef(None, None))._reconcile(watched, "digits", RunSnapshot("digits", ()), failed, [])
    assert written == ([] if starts else ["second"])


@pytest.mark.parametrize(
    "spec, node_lost, start_timeout", [({}, 60.0, 600.0), ({"limits": {"node_lost": "7s", "start_timeout": "2m"}}, 7.0, 120.0)]
)
def test_limits_of_a_run_are_those_of_its_record_or_the_defaults(spec: dict[str, Any], node_lost: float, start_timeout: float) -> None:
    watched: Any = SimpleNamespace(record={"metadata": {}, "data": {"spec.json": as_json(spec)}})
    assert (_limit(watched, "node_lost"), _limit(watched, "start_timeout")) == (node_lost, start_timeout)


def test_an_admission_webhook_that_fails_is_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = KubernetesBackend(tmp_path, ClusterRef(None, None))
    monkeypatch.setitem(backend._clusters, "digits", cast("Cluster", SimpleNamespace()))
    error: LauncherError = WebhookError(
        "changing Job digits-chief: an admission webhook of the cluster does not answer", "have it repaired"
    )

    def complete(_watched: object) -> None:
        raise error

    monkeypatch.setattr(backend, "_complete_start", complete)
    assert backend.reconcile("digits") == [f"{error.message}: {error.remedy}"]
    assert backend.reconcile("digits") == []
    error = TransientError("changing Job digits-chief: the cluster does not answer", "")  # as `status` reports for the time that this takes
    assert backend.reconcile("digits") == []
