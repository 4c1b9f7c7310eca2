"""Credentials in a kubeconfig that expire, are renewed, or are missing, and how the launcher handles them."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from launcher.backend.kubernetes import backend, client
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import CredentialsError
from launcher.backend.model import ClusterRef
from launcher.errors import LauncherError
from launcher.runs.status import RunStatus, RunUnreachableError, State
from tests.launcher.backend.kubernetes.objects import kubeconfig

# Records each call, and returns the token in a file, valid for a minute.
PLUGIN = """\
import datetime, json, pathlib, sys
here = pathlib.Path(sys.argv[1])
with (here / "calls").open("a") as calls:
    calls.write(".")
until = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=60)).strftime("%Y-%m-%dT%H:%M:%SZ")
status = {"token": (here / "token").read_text(), "expirationTimestamp": until}
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
"""


class TokenHandler(BaseHTTPRequestHandler):
    """Answers like an API server that accepts one token."""

    token = "first"  # noqa: S105  of this test

    def do_GET(self) -> None:
        accepted = self.headers.get("Authorization") == f"Bearer {self.token}"
        answer = {"items": [], "major": "1", "minor": "34"} if accepted else {"message": "Unauthorized"}
        body = json.dumps(answer).encode()
        self.send_response(200 if accepted else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


Configure = Callable[[object], None]


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Configure]:
    """Run an API server, and return a function that writes a kubeconfig with a user's credentials. Logins may follow each other at once."""
    monkeypatch.setattr(TokenHandler, "token", "first")
    monkeypatch.setattr(client, "_LOGIN_INTERVAL", 0.0)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with ThreadingHTTPServer(("127.0.0.1", 0), TokenHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def write(user: object) -> None:
            (tmp_path / "config").write_text(kubeconfig(server.server_port, user))

        yield write
        server.shutdown()


def plugin(directory: Path, command: str = sys.executable) -> dict[str, object]:
    (directory / "plugin.py").write_text(PLUGIN)
    (directory / "token").write_text("first")
    arguments = [str(directory / "plugin.py"), str(directory)]
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": command, "args": arguments, "interactiveMode": "Never"}}


def test_a_plugin_is_not_called_for_each_request_even_if_its_token_is_short_lived(configure: Configure, tmp_path: Path) -> None:
    configure(plugin(tmp_path))
    cluster = Cluster()
    for _ in range(20):
        assert cluster.version() == (1, 34)
    assert (tmp_path / "calls").read_text() == "."


def test_a_token_that_is_refused_is_renewed_by_the_plugin_and_by_the_kubeconfig(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(plugin(tmp_path))
    cluster = Cluster()
    monkeypatch.setattr(TokenHandler, "token", "second")
    (tmp_path / "token").write_text("second")
    assert cluster.version() == (1, 34)
    monkeypatch.setattr(TokenHandler, "token", "third")
    with pytest.raises(CredentialsError, match="authentication failed") as caught:
        cluster.version()
    assert "log in to it again" in caught.value.remedy
    configure({"token": "third"})  # as a new login writes it
    assert cluster.version() == (1, 34)


def test_a_plugin_that_is_not_installed_is_named(configure: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(plugin(tmp_path, command="no-such-plugin"))
    with pytest.raises(
        LauncherError, match=r"the plugin that has the credentials of the context here gives none: .*no-such-plugin"
    ) as caught:
        Cluster()
    assert "install it" in caught.value.remedy
    assert capsys.readouterr().err == ""


def test_a_run_continues_without_credentials_and_is_followed_until_a_timeout(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure({"token": "first"})
    runs = backend.KubernetesBackend(tmp_path, ClusterRef(None, None))
    watched = runs._watched("digits")
    watched.last, watched.answered = RunStatus("digits", "kubernetes", State.RUNNING), time.monotonic()
    monkeypatch.setattr(TokenHandler, "token", "second")
    status = runs.status("digits")
    assert status.state is State.RUNNING
    assert status.reason == "the cluster has not accepted your credentials for 0 s; the run continues"
    monkeypatch.setattr(backend, "UNREACHABLE_TIMEOUT", -1.0)
    with pytest.raises(RunUnreachableError, match=r"digits continues, but cannot be followed any more: .*authentication failed") as caught:
        runs.status("digits")
    assert caught.value.exit_code == 69


@pytest.mark.parametrize("text", ["", "users: [", "contexts: []", "{}"])
def test_a_kubeconfig_that_is_being_written_is_no_reason_to_give_up(
    text: str, configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure({"token": "first"})
    cluster = Cluster()
    monkeypatch.setattr(TokenHandler, "token", "second")
    (tmp_path / "config").write_text(text)
    with pytest.raises(CredentialsError):
        cluster.version()
    configure({"token": "second"})
    assert cluster.version() == (1, 34)


def test_a_thread_tries_again_if_another_has_renewed_the_credentials(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    configure({"token": "first"})
    cluster = Cluster()
    refused = cluster._dynamic
    cluster._log_in()
    monkeypatch.setattr(client, "_LOGIN_INTERVAL", 60.0)
    assert cluster._log_in_again(refused)
    assert not cluster._log_in_again(cluster._dynamic)


def test_a_user_who_may_only_list_nodes_and_pods_has_no_access_to_the_namespace(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure({"token": "first"})
    for resources, no_access in ((["nodes", "pods"], True), (["jobs"], False), (["*"], False)):
        cluster = Cluster()
        review = {"status": {"resourceRules": [{"verbs": ["list"], "apiGroups": [""], "resources": resources}]}}
        monkeypatch.setattr(cluster, "request", lambda *_, review=review, **__: review)
        assert cluster.lacks_access() == no_access
