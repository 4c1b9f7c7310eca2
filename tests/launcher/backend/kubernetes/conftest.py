"""A cluster whose API server does not forward ports."""

import http.server
import json
import os
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from kubernetes.client import Configuration

from launcher.backend.kubernetes.client import Cluster
from launcher.runs import archive


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
    """Return the handler of the server of `cluster`, whose answer a test may set."""
    return type("_", (ForwardHandler,), {})


@pytest.fixture
def cluster(handler: type[ForwardHandler]) -> Iterator[Cluster]:
    """A cluster whose API server answers as `handler` says, with a pod that has said that it listens."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        client = SimpleNamespace(configuration=Configuration(host=f"http://127.0.0.1:{server.server_address[1]}"))
        log = f"{archive.LISTENING}\nits last line".encode()
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield cast("Cluster", SimpleNamespace(client=client, namespace="mine", log=lambda *_, **__: log))
        server.shutdown()
        thread.join()
