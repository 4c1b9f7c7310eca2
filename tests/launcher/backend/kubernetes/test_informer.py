"""Lists that are read once and watched from then on, against a server of the tests' own that answers like an API server."""

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
from launcher.backend.kubernetes.errors import UnreachableError
from launcher.backend.kubernetes.informer import Informer
from launcher.backend.kubernetes.status_source import Source
from tests.launcher.backend.kubernetes import objects
from tests.waiting import until

RULE = 'pods is forbidden: User "ada" cannot watch resource "pods" in API group "" in the namespace "n"'


class State:
    """The server's objects, and the requests it got."""

    def __init__(self) -> None:
        self.there: dict[str, list[dict[str, Any]]] = {"pods": [], "jobs": []}
        self.version = 7
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.oldest = 0  # version from which it can tell changes
        self.refuses: int | None = None  # watches, by this code
        self.token = "first"  # noqa: S105  of this test
        self.watches = 0  # ended so far
        self.is_away = False
        self.asked: list[str] = []

    def change(self, kind: str, pod: dict[str, Any]) -> None:
        """Add, change or delete a pod, and tell those who watch."""
        self.version += 1
        pod = {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(self.version)}}
        others = [one for one in self.there["pods"] if one["metadata"]["name"] != pod["metadata"]["name"]]
        self.there["pods"] = others if kind == "DELETED" else [*others, pod]
        self.events.append((self.version, {"type": kind, "object": pod}))

    def tell(self, event: dict[str, Any]) -> None:
        """Tell those who watch something else."""
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
        if self.state.is_away:
            self.close_connection = True
            return
        token, ended = self.state.token, self.state.watches  # as they are now: a test goes on once it sees that this was asked
        self.state.asked.append(
            f"watch {query['resourceVersion']}" if watches else " ".join([kind, *filter(None, [query.get("fieldSelector")])])
        )
        if self.headers.get("Authorization") != f"Bearer {token}":
            self._answer(401, {"message": "Unauthorized"})
        elif not watches:
            items = self.state.there.get(kind, [])
            self._answer(200, {"metadata": {"resourceVersion": str(self.state.version)}, "items": items})
        elif self.state.refuses:
            self._answer(self.state.refuses, {"message": RULE})
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
        while self.state.watches == ended:
            for told, event in [one for one in self.state.events if one[0] > version]:
                version = told
                self._chunk(json.dumps(event).encode() + b"\n")
            time.sleep(0.01)
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    """Return what the server has."""
    made = State()
    monkeypatch.setattr(informer, "_RETRY_INTERVAL", 0.01)
    monkeypatch.setattr(client, "_LOGIN_INTERVAL", 0.0)
    yield made
    monkeypatch.setattr(informer, "_IDLE_TIMEOUT", -1.0)
    made.watches += 1
    until(
        "the end of the threads that watch",
        lambda: not any(thread.name.startswith("watch ") for thread in threading.enumerate()),
        seen=threading.enumerate,
    )


def kubeconfig(port: int, token: str = "first") -> str:  # noqa: S107  of this test
    there = {"cluster": {"server": f"http://127.0.0.1:{port}"}, "name": "c"}
    used = {"context": {"cluster": "c", "user": "u", "namespace": "n"}, "name": "here"}
    users = [{"name": "u", "user": {"token": token}}]
    return json.dumps(
        {"apiVersion": "v1", "kind": "Config", "clusters": [there], "contexts": [used], "current-context": "here", "users": users}
    )


@pytest.fixture
def cluster(state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Return the way to the server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Answering", (Answering,), {"state": state})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (tmp_path / "config").write_text(kubeconfig(server.server_port))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield Cluster()
        server.shutdown()


def watching(cluster: Cluster, state: State) -> Informer:
    """Return what has begun to watch pods."""
    made = Informer(cluster, "Pod", {"run": "digits"})
    assert names(made) == names(made)
    until("a request", lambda: state.asked[-1].startswith("watch"), seen=lambda: state.asked)
    return made


def names(pods: Informer) -> list[str]:
    return [one["metadata"]["name"] for one in pods.objects()]


def of_run(pod: dict[str, Any]) -> dict[str, Any]:
    head = pod["metadata"]
    return {**pod, "metadata": {**head, "labels": {**head["labels"], "tf-launcher/cluster": "digits"}}}


FIRST, SECOND = objects.running("worker", 0), objects.running("worker", 1)
ONE, TWO = FIRST["metadata"]["name"], SECOND["metadata"]["name"]


def test_who_asks_once_opens_no_watch_and_who_asks_again_is_told_what_changes(state: State, cluster: Cluster) -> None:
    state.change("ADDED", FIRST)
    once = Informer(cluster, "Pod", {"run": "digits"})
    assert (names(once), state.asked) == ([ONE], ["pods"])
    pods = watching(cluster, state)
    before = len(state.asked)
    state.change("ADDED", SECOND)
    until("the pods", lambda: names(pods) == [ONE, TWO], seen=lambda: names(pods))
    state.change("MODIFIED", objects.ended("worker", 1, 1))
    until("the pod to have failed", lambda: pods.objects()[1]["status"]["phase"] == "Failed", seen=pods.objects)
    state.change("DELETED", FIRST)
    until("the pods", lambda: names(pods) == [TWO], seen=lambda: names(pods))
    assert len(state.asked) == before


def test_a_watch_that_ends_goes_on_where_it_was(state: State, cluster: Cluster) -> None:
    state.change("ADDED", FIRST)
    pods = watching(cluster, state)
    state.tell({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}})
    state.change("ADDED", SECOND)
    until("the pods", lambda: len(names(pods)) == 2, seen=lambda: names(pods))
    state.watches += 1
    until("a request", lambda: state.asked[-1] == "watch 10", seen=lambda: state.asked)
    assert state.asked.count("pods") == 2
    state.change("DELETED", SECOND)
    until("the pods", lambda: names(pods) == [ONE], seen=lambda: names(pods))


@pytest.mark.parametrize("within", [True, False])
def test_what_the_api_server_has_forgotten_is_listed_again(within: bool, state: State, cluster: Cluster) -> None:
    pods = watching(cluster, state)
    state.change("ADDED", FIRST)
    until("the pods", lambda: names(pods) == [ONE], seen=lambda: names(pods))
    if within:
        state.tell({"type": "ERROR", "object": {"kind": "Status", "code": 410}})
        state.oldest = state.version
    else:
        state.version = state.oldest = 100
    state.watches += 1
    until("a request", lambda: state.asked[-2:] == ["pods", f"watch {state.version}"], seen=lambda: state.asked)
    assert names(pods) == [ONE]


def test_a_cluster_that_is_away_is_told_and_what_it_has_when_it_is_back(state: State, cluster: Cluster) -> None:
    pods = watching(cluster, state)

    def told() -> list[str]:
        try:
            return names(pods)
        except UnreachableError as error:
            return [error.message.partition(" the cluster does not answer")[0]]

    state.is_away = True
    state.watches += 1
    until("the pods, or what is told of them", lambda: told() == ["watching pods:"] or told() == ["listing pods:"], seen=told)
    state.change("ADDED", FIRST)
    state.events.clear()
    state.is_away = False
    until("the pods, or what is told of them", lambda: told() == [ONE], seen=told)


def test_a_token_that_has_expired_is_renewed_when_the_watch_is_opened_again(state: State, cluster: Cluster, tmp_path: Path) -> None:
    pods = watching(cluster, state)
    port = urlsplit(cluster.client.configuration.host).port
    (tmp_path / "config").write_text(kubeconfig(port or 0, "second"))
    state.token = "second"  # noqa: S105  of this test
    state.watches += 1
    until("a request", lambda: state.asked[-3:] == ["watch 7"] * 3, seen=lambda: state.asked)  # opened, refused, opened
    state.change("ADDED", FIRST)
    until("the pods", lambda: names(pods) == [ONE], seen=lambda: names(pods))


def test_who_may_not_watch_asks_seldom_while_nothing_changes(state: State, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below 0.5 requests a second in steady state, for both kinds together, and every second after a change."""
    state.refuses = 403
    state.change("ADDED", of_run(FIRST))
    state.there["jobs"] = [objects.job("worker")]
    source = Source(cluster, "digits")
    assert source.snapshot() == source.snapshot()
    until(
        "the end of the threads that watch",
        lambda: not any(thread.name.startswith("watch ") for thread in threading.enumerate()),
        seen=threading.enumerate,
    )
    now = [time.monotonic()]
    monkeypatch.setattr(informer, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def asked(seconds: int) -> int:
        before = len(state.asked)
        for _ in range(seconds):
            now[0] += 1
            source.snapshot()
        return len(state.asked) - before

    assert asked(10) >= 18  # a run that has just begun is looked at as often as ever
    assert 0 < asked(200) < 200
    assert 0 < asked(100) < 50
    source.poll_soon()
    assert asked(5) >= 8
    assert asked(300)
    state.change("MODIFIED", of_run(objects.ended("worker", 1, 0)))
    assert asked(10)
    assert [pod["status"]["phase"] for pod in source.snapshot().pods] == ["Failed"]
    waiting = of_run(objects.pod("worker", 0, "Pending"))
    state.change("MODIFIED", waiting)
    assert asked(20)
    assert {one for one in state.asked if one.startswith("events")} == {f"events involvedObject.uid={waiting['metadata']['uid']}"}
    assert asked(300)
    assert 0 < asked(100) < 50
