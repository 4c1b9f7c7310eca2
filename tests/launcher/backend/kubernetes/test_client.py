"""An API server's answers, as the launcher takes them."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from launcher.backend.kubernetes.client import Cluster, version_numbers


@pytest.mark.parametrize("minor, read", [("34", 34), ("29+", 29)])
def test_a_version_may_have_more_than_digits(minor: str, read: int) -> None:
    assert version_numbers({"major": "1", "minor": minor, "gitVersion": f"v1.{minor}"}) == (1, read)


class Behind(BaseHTTPRequestHandler):
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
        """Say nothing."""


def test_the_time_is_the_api_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Behind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = {"cluster": {"server": f"http://127.0.0.1:{server.server_port}"}, "name": "c"}
        used = {"context": {"cluster": "c", "user": "u", "namespace": "n"}, "name": "here"}
        config = {"clusters": [there], "contexts": [used], "current-context": "here", "users": [{"name": "u", "user": {}}]}
        (tmp_path / "config").write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **config}))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        cluster = Cluster()
        assert abs(cluster.now() - time.time()) < 60  # nothing was heard yet
        assert cluster.version() == (1, 34)
        assert abs(cluster.now() - (time.time() - 600)) < 60
        server.shutdown()
