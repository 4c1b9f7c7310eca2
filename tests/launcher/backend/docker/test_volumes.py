"""Reading a run's volume from an engine that fails or no longer has the container; the engine is an HTTP server of the tests."""

import http.server
import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from launcher.backend.docker import volumes
from launcher.backend.docker.engine import COPY, READER, Endpoint, Engine, translate_errors
from launcher.errors import LauncherError, UsageError
from launcher.runs.artifacts import Artifact


class EngineHandler(http.server.BaseHTTPRequestHandler):
    """Answers like an engine with one volume; `archive` is the status for requests of a container's files."""

    archive = 200
    removed = 204
    requests: list[tuple[str, str, dict[str, list[str]]]]

    def do_HEAD(self) -> None:
        self._answer(self.archive, None)

    def do_GET(self) -> None:
        answers: dict[str, Any] = {"version": {"ApiVersion": "1.41"}, "volumes": {"Volumes": [{"Name": "toy_run"}]}}
        last = urlsplit(self.path).path.rsplit("/", 1)[-1]
        self._answer(200, [] if urlsplit(self.path).path.endswith(("/containers/json", "/networks")) else answers.get(last, {"Id": "c1"}))

    def do_POST(self) -> None:
        self._answer(201, {"Id": "c1"})

    def do_DELETE(self) -> None:
        self._answer(self.removed, {"message": "no such container"})

    def _answer(self, status: int, body: Any) -> None:
        url = urlsplit(self.path)
        self.requests.append((self.command, url.path, parse_qs(url.query)))
        content = b"" if body is None or status == 204 else json.dumps(body).encode()
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[EngineHandler]]:
    handler = type("_", (EngineHandler,), {"requests": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setattr("launcher.images.find", lambda _: SimpleNamespace())  # so that the docker command is not called
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield handler
        server.shutdown()
        thread.join()


@pytest.fixture
def engine(handler: type[EngineHandler]) -> Engine:
    del handler
    return Engine(Endpoint(""))


def test_a_reader_that_was_already_removed_is_no_error(engine: Engine, handler: type[EngineHandler]) -> None:
    handler.removed = 404
    with volumes.open_artifact(engine, "toy", Artifact.MODEL, None) as stored:
        assert stored.origin == "volume toy_run, toy/export/best"


def test_removing_a_reader_removes_its_anonymous_volumes(engine: Engine, handler: type[EngineHandler]) -> None:
    with volumes.open_artifact(engine, "toy", Artifact.MODEL, None):
        pass
    method, path, query = handler.requests[-1]
    assert (method, path.endswith("/containers/c1"), query["v"]) == ("DELETE", True, ["True"])


def test_an_engine_that_fails_is_not_taken_for_a_missing_model(engine: Engine, handler: type[EngineHandler]) -> None:
    handler.archive = 500
    with (
        pytest.raises(LauncherError, match="reading the model of toy failed: 500"),
        translate_errors("reading the model of toy"),
        volumes.open_artifact(engine, "toy", Artifact.MODEL, None),
    ):
        pass
    handler.archive = 404
    with pytest.raises(UsageError, match="toy has no model yet"), volumes.open_artifact(engine, "toy", Artifact.MODEL, None):
        pass


def test_the_end_of_a_run_removes_no_reader(engine: Engine, handler: type[EngineHandler]) -> None:
    engine.remove("toy")
    filters = [str(query.get("filters")) for _, path, query in handler.requests if path.endswith("/containers/json")]
    assert any(COPY in one for one in filters)
    assert not any(READER in one for one in filters)
