"""How the launcher reads an API server's answers."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from launcher.backend.kubernetes.client import Cluster, version_numbers
from launcher.errors import LauncherError, UsageError
from tests.launcher.backend.kubernetes.objects import kubeconfig


@pytest.mark.parametrize("minor, number", [("34", 34), ("29+", 29)])
def test_a_version_may_have_a_suffix(minor: str, number: int) -> None:
    assert version_numbers({"major": "1", "minor": minor, "gitVersion": f"v1.{minor}"}) == (1, number)


class SlowClockHandler(BaseHTTPRequestHandler):
    """Answers like an API server whose clock is ten minutes behind this machine's."""

    def do_GET(self) -> None:
        body = b'{"major": "1", "minor": "34"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def date_time_string(self, timestamp: float | None = None) -> str:
        assert timestamp is None
        return super().date_time_string(time.time() - 600)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def test_the_time_is_the_api_server_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SlowClockHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (tmp_path / "config").write_text(kubeconfig(server.server_port, {}))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        cluster = Cluster()
        assert abs(cluster.now() - time.time()) < 60  # before the first answer
        assert cluster.version() == (1, 34)
        assert abs(cluster.now() - (time.time() - 600)) < 60
        server.shutdown()


@pytest.mark.parametrize("current", [None, "", "deleted"])
def test_a_kubeconfig_needs_no_current_context_if_one_is_named(
    current: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.loads(kubeconfig(1, {}))
    del document["current-context"]
    (tmp_path / "config").write_text(json.dumps(document | ({} if current is None else {"current-context": current})))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert Cluster("here").namespace == "n"
    missing = "the kubeconfig has no context deleted" if current else "the kubeconfig has no current context"
    with pytest.raises(UsageError, match=missing) as refused:
        Cluster()
    assert refused.value.remedy == "choose one with --context: here"
    with pytest.raises(UsageError, match="the kubeconfig has no context elsewhere") as refused:
        Cluster("elsewhere")
    assert refused.value.remedy == "choose one of: here"


@pytest.mark.parametrize(
    "content",
    [b"contexts: [", b"text", b"\xff\xfec\x00", b"contexts: 7", b"contexts: [{name: here}]", b"{}", b"", b"[]"],
    ids=["no YAML", "text", "UTF-16", "a number", "no context", "no contexts", "empty", "a list"],
)
def test_a_damaged_kubeconfig_is_reported_with_a_remedy(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_bytes(content)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(LauncherError, match="reading the kubeconfig: ") as refused:
        Cluster("here")
    assert "set KUBECONFIG to the file that names your cluster" in refused.value.remedy


def test_an_empty_kubeconfig_variable_counts_as_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(kubeconfig(1, {}))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", "")
    assert Cluster().context == "here"
