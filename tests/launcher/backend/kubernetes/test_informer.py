"""Lists that are read once and then watched, with a test server that answers like an API server."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from launcher.backend.kubernetes import client, informer
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import TransientError
from launcher.backend.kubernetes.informer import Informer
from launcher.backend.kubernetes.status_reader import RunInformer
from tests.launcher.backend.kubernetes import objects
from tests.waiting import until

RULE = 'pods is forbidden: User "ada" cannot watch resource "pods" in API group "" in the namespace "n"'


class State:
    """The server's objects, and the requests it got."""

    def __init__(self) -> None:
        self.objects: dict[str, list[dict[str, Any]]] = {"pods": [], "jobs": []}
        self.version = 7
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.oldest = 0  # version from which it knows changes
        self.watch_error: int | None = None  # the status code that watches get
        self.token = "first"  # noqa: S105  of this test
        self.ended_watches = 0
        self.is_unreachable = False
        self.requests: list[str] = []

    def change(self, kind: str, pod: dict[str, Any]) -> None:
        """Add, change or delete a pod, and send the event to the watches."""
        self.version += 1
        pod = {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(self.version)}}
        others = [one for one in self.objects["pods"] if one["metadata"]["name"] != pod["metadata"]["name"]]
        self.objects["pods"] = others if kind == "DELETED" else [*others, pod]
        self.events.append((self.version, {"type": kind, "object": pod}))

    def send(self, event: dict[str, Any]) -> None:
        """Send another event to the watches."""
        self.version += 1
        self.events.append((self.version, event))


class Answering(BaseHTTPRequestHandler):
    """Answers lists and watches."""

    state: State
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query, kind = {key: values[0] for key, values in parse_qs(parts.query).items()}, parts.path.rpartition("/")[2]
        watches = query.get("watch") == "true"
        if self.state.is_unreachable:
            self.close_connection = True
            return
        token, ended = self.state.token, self.state.ended_watches  # read first: a test continues as soon as it sees the request
        self.state.requests.append(
            f"watch {query['resourceVersion']}" if watches else " ".join([kind, *filter(None, [query.get("fieldSelector")])])
        )
        if self.headers.get("Authorization") != f"Bearer {token}":
            self._answer(401, {"message": "Unauthorized"})
        elif not watches:
            items = self.state.objects.get(kind, [])
            self._answer(200, {"metadata": {"resourceVersion": str(self.state.version)}, "items": items})
        elif self.state.watch_error:
            self._answer(self.state.watch_error, {"message": RULE})
        elif int(query["resourceVersion"]) < self.state.oldest:
            self._answer(410, {"message": "too old resource version"})
        else:
            assert query["allowWatchBookmarks"] == "true"
            self._watch(int(query["resourceVersion"]), ended)

    def _answer(self, code: int, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, version: int, ended: int) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while self.state.ended_watches == ended:
            for event_version, event in [one for one in self.state.events if one[0] > version]:
                version = event_version
                self._chunk(json.dumps(event).encode() + b"\n")
            time.sleep(0.01)
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    """Return the server's objects; at the end of the test, end the threads that watch."""
    server_state = State()
    monkeypatch.setattr(informer, "_RETRY_INTERVAL", 0.01)
    monkeypatch.setattr(client, "_LOGIN_INTERVAL", 0.0)
    yield server_state
    monkeypatch.setattr(informer, "_IDLE_TIMEOUT", -1.0)
    server_state.ended_watches += 1
    until_no_watch()


def until_no_watch() -> None:
    """Wait for the end of the threads that watch."""
    until(
        "the end of the threads that watch",
        lambda: not any(thread.name.startswith("watch ") for thread in threading.enumerate()),
        seen=threading.enumerate,
    )


@pytest.fixture
def cluster(state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Return a client of the server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Answering", (Answering,), {"state": state})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (tmp_path / "config").write_text(objects.kubeconfig(server.server_port, {"token": "first"}))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield Cluster()
        server.shutdown()


def watching(cluster: Cluster, state: State) -> Informer:
    """Return an informer that has begun to watch pods."""
    pods = Informer(cluster, "Pod", {"run": "digits"})
    assert names(pods) == names(pods)
    until("a request", lambda: state.requests[-1].startswith("watch"), seen=lambda: state.requests)
    return pods


def names(pods: Informer) -> list[str]:
    return [one["metadata"]["name"] for one in pods.objects()]


def of_run(pod: dict[str, Any]) -> dict[str, Any]:
    head = pod["metadata"]
    return {**pod, "metadata": {**head, "labels": {**head["labels"], "tf-launcher/cluster": "digits"}}}


FIRST, SECOND = objects.running("worker", 0), objects.running("worker", 1)
ONE, TWO = FIRST["metadata"]["name"], SECOND["metadata"]["name"]


def test_the_first_read_opens_no_watch_and_later_ones_get_the_changes(state: State, cluster: Cluster) -> None:
    state.change("ADDED", FIRST)
    once = Informer(cluster, "Pod", {"run": "digits"})
    assert (names(once), state.requests) == ([ONE], ["pods"])
    pods = watching(cluster, state)
    before = len(state.requests)
    state.change("ADDED", SECOND)
    until("the pods", lambda: names(pods) == [ONE, TWO], seen=lambda: names(pods))
    state.change("MODIFIED", objects.ended("worker", 1, 1))
    until("the pod to have failed", lambda: pods.objects()[1]["status"]["phase"] == "Failed", seen=pods.objects)
    state.change("DELETED", FIRST)
    until("the pods", lambda: names(pods) == [TWO], seen=lambda: names(pods))
    assert len(state.requests) == before


def test_a_watch_that_ends_is_opened_again_at_its_version(state: State, cluster: Cluster) -> None:
    state.change("ADDED", FIRST)
    pods = watching(cluster, state)
    state.send({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}})
    state.change("ADDED", SECOND)
    until("the pods", lambda: len(names(pods)) == 2, seen=lambda: names(pods))
    state.ended_watches += 1
    until("a request", lambda: state.requests[-1] == "watch 10", seen=lambda: state.requests)
    assert state.requests.count("pods") == 2
    state.change("DELETED", SECOND)
    until("the pods", lambda: names(pods) == [ONE], seen=lambda: names(pods))


@pytest.mark.parametrize("during_watch", [True, False])
def test_pods_are_listed_again_if_the_api_server_no_longer_knows_the_version(during_watch: bool, state: State, cluster: Cluster) -> None:
    pods = watching(cluster, state)
    state.change("ADDED", FIRST)
    until("the pods", lambda: names(pods) == [ONE], seen=lambda: names(pods))
    if during_watch:
        state.send({"type": "ERROR", "object": {"kind": "Status", "code": 410}})
        state.oldest = state.version
    else:
        state.version = state.oldest = 100
    state.ended_watches += 1
    until("a request", lambda: state.requests[-2:] == ["pods", f"watch {state.version}"], seen=lambda: state.requests)
    assert names(pods) == [ONE]


def test_an_unreachable_cluster_is_an_error_and_its_pods_are_listed_once_it_is_back(state: State, cluster: Cluster) -> None:
    pods = watching(cluster, state)

    def names_or_error() -> list[str]:
        try:
            return names(pods)
        except TransientError as error:
            return [error.message.partition(" the cluster does not answer")[0]]

    state.is_unreachable = True
    state.ended_watches += 1
    until("the error", lambda: names_or_error() in (["watching pods:"], ["listing pods:"]), seen=names_or_error)
    state.change("ADDED", FIRST)
    state.events.clear()
    state.is_unreachable = False
    until("the pods", lambda: names_or_error() == [ONE], seen=names_or_error)


def test_a_token_that_has_expired_is_renewed_when_the_watch_is_opened_again(state: State, cluster: Cluster, tmp_path: Path) -> None:
    pods = watching(cluster, state)
    port = urlsplit(cluster.client.configuration.host).port
    (tmp_path / "config").write_text(objects.kubeconfig(port or 0, {"token": "second"}))
    state.token = "second"  # noqa: S105  of this test
    state.ended_watches += 1
    until("a request", lambda: state.requests[-3:] == ["watch 7"] * 3, seen=lambda: state.requests)  # opened, refused, opened
    state.change("ADDED", FIRST)
    until("the pods", lambda: names(pods) == [ONE], seen=lambda: names(pods))


def test_without_the_right_to_watch_requests_are_rare_while_nothing_changes(
    state: State, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below 0.5 requests a second in steady state, for both kinds together, and every second after a change."""
    state.watch_error = 403
    state.change("ADDED", of_run(FIRST))
    state.objects["jobs"] = [objects.job("worker")]
    run_informer = RunInformer(cluster, "digits")
    assert run_informer.snapshot() == run_informer.snapshot()
    until_no_watch()
    now = [time.monotonic()]
    monkeypatch.setattr(informer, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def count_requests(seconds: int) -> int:
        before = len(state.requests)
        for _ in range(seconds):
            now[0] += 1
            run_informer.snapshot()
        return len(state.requests) - before

    assert count_requests(10) >= 18  # a run that has just begun is read every second
    assert 0 < count_requests(200) < 200
    assert 0 < count_requests(100) < 50
    run_informer.poll_soon()
    assert count_requests(5) >= 8
    assert count_requests(300)
    state.change("MODIFIED", of_run(objects.ended("worker", 1, 0)))
    assert count_requests(10)
    assert [pod["status"]["phase"] for pod in run_informer.snapshot().pods] == ["Failed"]
    waiting = of_run(objects.pod("worker", 0, "Pending"))
    state.change("MODIFIED", waiting)
    assert count_requests(20)
    assert {one for one in state.requests if one.startswith("events")} == {f"events involvedObject.uid={waiting['metadata']['uid']}"}
    assert count_requests(300)
    assert 0 < count_requests(100) < 50
