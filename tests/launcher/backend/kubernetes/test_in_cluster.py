"""The API server as a pod reaches it: the requests, and the errors for refusals."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from launcher.backend.kubernetes import client, in_cluster
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import CredentialsError, ForbiddenError, TransientError
from launcher.errors import LauncherError

FORBIDDEN = (
    'jobs.batch is forbidden: User "system:serviceaccount:n:a" cannot list resource "jobs" in API group "batch" in the namespace "n"'
)


class Server(BaseHTTPRequestHandler):
    """Answers like an API server, and records the requests."""

    requests: ClassVar[list[tuple[str, str, dict[str, str], bytes]]] = []
    answers: ClassVar[dict[str, tuple[int, bytes]]] = {}

    def _answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.requests.append((self.command, self.path, dict(self.headers), content))
        status, body = self.answers.get(self.path.partition("?")[0], (200, b'{"items": []}'))
        if self.headers["Authorization"] != "Bearer good":
            status, body = 401, b'{"message": "Unauthorized"}'
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Run an API server, and return the directory of an account that reaches it."""
    monkeypatch.setattr(Server, "requests", [])
    monkeypatch.setattr(Server, "answers", {})
    for name, text in (("token", "good\n"), ("namespace", "n"), ("ca.crt", "")):
        (tmp_path / name).write_text(text)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(in_cluster, "SERVICE_ACCOUNT", tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_port))
        monkeypatch.setattr(in_cluster, "_SCHEME", "http")
        yield tmp_path
        server.shutdown()


@pytest.mark.usefixtures("account")
def test_a_pod_uses_its_account_in_its_own_namespace() -> None:
    cluster = Cluster()
    assert (cluster.context, cluster.namespace, cluster.description()) == (None, "n", "namespace n")
    assert cluster.list_objects("Job", {"a": "b"}) == []
    cluster.patch("Pod", "p", {"status": {}}, subresource="status")
    (get, get_path, get_headers, _), (patch, patch_path, patch_headers, content) = Server.requests
    assert (get, get_path, get_headers["Authorization"]) == ("GET", "/apis/batch/v1/namespaces/n/jobs?labelSelector=a%3Db", "Bearer good")
    assert (patch, patch_path) == ("PATCH", "/api/v1/namespaces/n/pods/p/status?fieldManager=launcher")
    assert (patch_headers["Content-Type"], json.loads(content)) == ("application/merge-patch+json", {"status": {}})


@pytest.mark.usefixtures("account")
def test_a_stream_is_read_piece_by_piece() -> None:
    events: list[dict[str, Any]] = [{"type": "ADDED", "object": {"metadata": {"name": name}}} for name in "ab"]
    Server.answers["/api/v1/namespaces/n/pods"] = 200, b"".join(json.dumps(one).encode() + b"\n" for one in events)
    Server.answers["/api/v1/namespaces/n/pods/p/log"] = 200, b"1 one\n2 two\n"
    cluster = Cluster()
    assert list(cluster.watch("Pod", "7", {"a": "b"}, seconds=5)) == events
    assert list(cluster.follow_log("p", "trainer", [("timestamps", "true")], timeout=5)) == [b"1 one\n2 two"]
    assert "resourceVersion=7&watch=true&allowWatchBookmarks=true&timeoutSeconds=5" in Server.requests[0][1]
    assert Server.requests[1][1].endswith("/log?container=trainer&timestamps=true&follow=true")


@pytest.mark.usefixtures("account")
def test_a_refusal_names_the_missing_right() -> None:
    Server.answers["/apis/batch/v1/namespaces/n/jobs"] = 403, json.dumps({"message": FORBIDDEN}).encode()
    Server.answers["/api/v1/namespaces/n/pods/p"] = 404, b'{"message": "not found"}'
    Server.answers["/api/v1/namespaces/n/events"] = 503, b"busy"
    cluster = Cluster()
    cluster._lacks_access = False
    with pytest.raises(ForbiddenError) as refused:
        cluster.list_objects("Job")
    assert refused.value.rule == '{apiGroups: ["batch"], resources: ["jobs"], verbs: ["list"]}'
    assert cluster.get("Pod", "p") is None
    with pytest.raises(TransientError):
        cluster.list_objects("Event")


def test_a_token_that_was_renewed_is_used_at_once(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (account / "token").write_text("old")
    cluster = Cluster()
    with pytest.raises(CredentialsError):
        cluster.list_objects("Job")
    (account / "token").write_text("good")
    assert cluster.list_objects("Job") == []
    monkeypatch.setattr(client, "_LOGIN_INTERVAL", 0.0)
    assert cluster.list_objects("Job") == []


def test_a_pod_without_an_account_is_an_error(account: Path) -> None:
    (account / "token").unlink()
    with pytest.raises(LauncherError, match="no service account"):
        in_cluster.InClusterClient(1)
