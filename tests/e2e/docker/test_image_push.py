"""`launcher image build --push`: the pushed image arrives in a registry, here a part of the test."""

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from launcher.docker_cli import DockerError, docker
from launcher.image_build.build import push
from tests.processes import free_port

pytestmark = pytest.mark.docker

# https://distribution.github.io/distribution/spec/api/ has the requests.
_UPLOADS = "/blobs/uploads/"


class Registry(http.server.BaseHTTPRequestHandler):
    """Stores blobs and manifests in memory."""

    protocol_version = "HTTP/1.1"
    blobs: dict[str, bytes]
    manifests: dict[str, bytes]

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/v2/" else 404)

    def do_HEAD(self) -> None:
        self._answer(200 if self.path.rpartition("/")[2] in self.blobs else 404)

    def do_POST(self) -> None:
        self._answer(202, Location=f"{self.path}one")

    def do_PATCH(self) -> None:
        self.blobs["uploaded"] = self._body()
        self._answer(202, Location=self.path, Range=f"0-{len(self.blobs['uploaded']) - 1}")

    def do_PUT(self) -> None:
        url = urlsplit(self.path)
        if _UPLOADS in url.path:
            [digest] = parse_qs(url.query)["digest"]
            content = self.blobs.pop("uploaded", b"") + self._body()
            assert digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
            self.blobs[digest] = content
        else:
            self.manifests[url.path] = content = self._body()
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self._answer(201, **{"Location": self.path, "Docker-Content-Digest": digest})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def registry() -> Iterator[tuple[int, type[Registry]]]:
    handler = type("EmptyRegistry", (Registry,), {"blobs": {}, "manifests": {}})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], handler
        server.shutdown()


def test_push_uploads_the_image_and_names_a_registry_that_does_not_answer(registry: tuple[int, type[Registry]]) -> None:
    port, handler = registry
    name, unreachable = f"127.0.0.1:{port}/team/small:1", f"127.0.0.1:{free_port()}/team/small:1"
    docker("build", "--tag", name, "--tag", unreachable, "-", stdin="FROM scratch\nCOPY --from=python:3.11-slim-bookworm /etc/hostname /\n")
    try:
        push(name)
        [(path, manifest)] = handler.manifests.items()
        assert path == "/v2/team/small/manifests/1"
        assert {layer["digest"] for layer in json.loads(manifest)["layers"]} <= set(handler.blobs)
        with pytest.raises(DockerError, match=f"pushing {unreachable} failed: ") as refused:
            push(unreachable)
        assert f"docker login {unreachable.partition('/')[0]}" in refused.value.remedy
    finally:
        docker("image", "rm", "--force", name, unreachable)
