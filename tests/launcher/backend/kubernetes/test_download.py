"""Reading a run's volume on a cluster, up to the pod; the rest needs a cluster, see tests/e2e/kubernetes."""

import http.server
import json
import os
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kubernetes.client import Configuration

from launcher.backend.kubernetes import download
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.download import _response, _run_of_jobs
from launcher.backend.kubernetes.errors import ForbiddenError
from launcher.errors import LauncherError
from launcher.runs import archive
from launcher.runs.stored import Artifact

GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def test_tolerations_of_a_run_that_kubectl_has_applied_come_from_its_jobs() -> None:
    pod: dict[str, Any] = {
        "volumes": [{"name": "run", "persistentVolumeClaim": {"claimName": "digits"}}],
        "tolerations": [GPU, {"key": "lost", "operator": "Exists", "tolerationSeconds": 5}],
        "containers": [{"image": "mine"}],
    }
    cluster = SimpleNamespace(
        listed=lambda *_: [{"spec": {"template": {"spec": pod}}}], get=lambda *_: {"spec": {"accessModes": ["ReadWriteOnce"]}}
    )
    run = _run_of_jobs(cast("Cluster", cluster), "digits")
    assert run is not None
    assert [one.model_dump(exclude_none=True) for one in run.options.tolerations] == pod["tolerations"]


class ForwardHandler(http.server.BaseHTTPRequestHandler):
    """An API server's answer to a request to forward a port."""

    status, message, interrupts = 500, "", False

    def do_GET(self) -> None:
        if self.interrupts:
            type(self).interrupts = False
            os.kill(os.getpid(), signal.SIGINT)
        content = json.dumps({"kind": "Status", "message": self.message}).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def handler() -> type[ForwardHandler]:
    return type("_", (ForwardHandler,), {})


@pytest.fixture
def cluster(handler: type[ForwardHandler], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(download, "_RETRY_INTERVAL", 0.01)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        client = SimpleNamespace(configuration=Configuration(host=f"http://127.0.0.1:{server.server_address[1]}"))
        log = f"{archive.LISTENING}\nits last line".encode()
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield cast("Cluster", SimpleNamespace(client=client, namespace="mine", log=lambda *_, **__: log))
        server.shutdown()
        thread.join()


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
