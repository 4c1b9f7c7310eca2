"""How the launcher reads an API server's answers."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from launcher.backend.kubernetes.client import Cluster, version_numbers
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
