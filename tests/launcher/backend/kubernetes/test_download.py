"""Reading a run's volume on a cluster, up to the pod; the rest needs a cluster, see tests/e2e/kubernetes."""

import io
import tarfile
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import download
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.download import _json_of_tar, _response, _run_of_jobs
from launcher.backend.kubernetes.errors import ForbiddenError
from launcher.errors import LauncherError
from launcher.runs.artifacts import Artifact
from tests.launcher.backend.kubernetes.conftest import ForwardHandler

GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def test_tolerations_of_a_run_that_kubectl_has_applied_come_from_its_jobs() -> None:
    pod: dict[str, Any] = {
        "volumes": [{"name": "run", "persistentVolumeClaim": {"claimName": "digits"}}],
        "tolerations": [GPU, {"key": "lost", "operator": "Exists", "tolerationSeconds": 5}],
        "containers": [{"image": "mine"}],
    }
    cluster = SimpleNamespace(
        list_objects=lambda *_: [{"spec": {"template": {"spec": pod}}}], get=lambda *_: {"spec": {"accessModes": ["ReadWriteOnce"]}}
    )
    run = _run_of_jobs(cast("Cluster", cluster), "digits")
    assert run is not None
    assert [one.model_dump(exclude_none=True) for one in run.options.tolerations] == pod["tolerations"]


@pytest.fixture(autouse=True)
def retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_RETRY_INTERVAL", 0.01)


def test_a_lacking_right_to_forward_ports_is_named_at_once(cluster: Cluster, handler: type[ForwardHandler]) -> None:
    handler.status = 403
    reason = 'User "anna" cannot get resource "pods/portforward" in API group "" in the namespace "mine"'
    handler.message = f'pods "reader" is forbidden: {reason}'
    with pytest.raises(ForbiddenError, match="anna may not get pods/portforward in the namespace mine") as refused:
        _response(cluster, "reader", Artifact.MODEL, "")
    assert 'resources: ["pods/portforward"]' in refused.value.remedy


def test_the_last_lines_of_a_pod_that_does_not_answer_are_reported(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_ANSWER_TIMEOUT", 0.05)
    with pytest.raises(LauncherError, match="its last line"):
        _response(cluster, "reader", Artifact.MODEL, "")


def test_an_interrupt_during_the_request_for_the_port_is_raised(cluster: Cluster, handler: type[ForwardHandler]) -> None:
    handler.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        _response(cluster, "reader", Artifact.MODEL, "")


def tar_of(name: str, content: bytes, link: str = "") -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size, entry.linkname, entry.type = len(content), link, tarfile.SYMTYPE if link else tarfile.REGTYPE
        tar.addfile(entry, io.BytesIO(content))
    return io.BytesIO(file.getvalue())


def test_a_run_json_that_is_cut_off_or_missing_in_the_answer_is_no_crash() -> None:
    whole = tar_of("run.json", b'{"state": "succeeded"}')
    assert _json_of_tar(whole, "digits") == {"state": "succeeded"}
    assert _json_of_tar(tar_of("run.json", b"", link="elsewhere"), "digits") == {}
    assert _json_of_tar(io.BytesIO(bytes(1024)), "digits") == {}
    for content in (b"", b"no tar file", whole.getvalue()[:515]):
        with pytest.raises(LauncherError, match=r"the run\.json of digits was not received whole: "):
            _json_of_tar(io.BytesIO(content), "digits")
