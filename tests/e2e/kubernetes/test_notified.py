"""A run that kubectl applied tells a webhook in the cluster how it ended, once, by its attendant; who looks later tells nobody again."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import ROOT, Namespace, kubectl, until
from tests.e2e.kubernetes.launching import Launcher

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]

PLACE = "T0KEN-in-the-path"
SERVER = """\
import http.server
class Hook(http.server.BaseHTTPRequestHandler):
    answers = [503]
    def do_POST(self):
        got = self.rfile.read(int(self.headers["Content-Length"])).decode()
        code = self.answers.pop() if self.answers else 200
        print(code, self.path, got, flush=True)
        self.send_response(code)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("", 8080), Hook).serve_forever()
"""


def webhook(namespace: Namespace, image: str) -> None:
    """Run a server, which refuses the first message, and make the Secret with its URL."""
    rights = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pod = {"name": "hook", "image": image, "command": ["python", "-c", SERVER], "securityContext": rights}
    user = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    head = {"name": "hook", "labels": {"app": "hook"}}
    made = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": head,
            "spec": {"containers": [pod], "securityContext": user, "terminationGracePeriodSeconds": 1},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": head,
            "spec": {"selector": {"app": "hook"}, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    ]
    namespace.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
    namespace.kubectl("create", "secret", "generic", "hook", f"--from-literal=url=http://hook.{namespace.name}.svc/{PLACE}")


def test_the_attendant_tells_a_webhook_once(namespace: Namespace, launcher: Launcher, image: str, tmp_path: Path) -> None:
    webhook(namespace, image)
    (tmp_path / "told.yaml").write_text(
        textwrap.dedent(f"""\
        version: 1
        name: told
        image: {image}
        supervise: false
        command: [python, -c, "import sys; print('no data'); sys.exit(3)"]
        limits: {{max_restarts: 0, grace_period: 1s}}
        notify: {{webhook: {{secret: hook, allow_http: true}}}}
        kubernetes: {{namespace: {namespace.name}, attendant: {{image: '{image}'}}}}
        """)
    )
    words = [sys.executable, "-m", "launcher", "render", str(tmp_path / "told.yaml"), "--to", "kubernetes"]
    rendered = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert PLACE not in rendered
    kubectl("apply", "-f", "-", text=rendered)

    def got() -> str:
        return namespace.kubectl("logs", "pod/hook", check=False)

    def describe() -> str:
        return namespace.kubectl("logs", "job/told-attendant", check=False) + got() + namespace.describe("told")

    until(lambda: namespace.ends("told").get("attendant") == "Complete", 240, "the attendant to have told it and to be done", describe)
    refused, taken = (line.split(" ", 2) for line in got().splitlines() if line.startswith(("503 ", "200 ")))
    assert (refused[:2], taken[:2]) == (["503", f"/{PLACE}"], ["200", f"/{PLACE}"])
    message = json.loads(taken[2])
    assert message == json.loads(refused[2])
    assert (message["event"], message["name"], message["state"]) == ("failed", "told", "failed")
    assert message["reason"].startswith("chief, attempt 1: exit code 3")
    [notified] = launcher.status("told")["notified"]
    assert notified.startswith("failed: sent by webhook at ")
    launcher("wait", "told", code=1)
    assert len(got().splitlines()) == 2
    for what in ("logs job/told-attendant", "get jobs,pods,configmaps,networkpolicies,events -o yaml"):
        assert PLACE not in namespace.kubectl(*what.split())
