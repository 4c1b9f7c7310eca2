"""The attendant of a run that kubectl applied sends the run's end to a webhook in the cluster, and no launcher sends it again."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import ROOT, Namespace, kubectl, until
from tests.e2e.kubernetes.launching import Launcher

pytestmark = pytest.mark.kubernetes

URL_PATH = "T0KEN-in-the-path"
SERVER = """\
import http.server
class Webhook(http.server.BaseHTTPRequestHandler):
    answers = [503]
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        code = self.answers.pop() if self.answers else 200
        print(code, self.path, body, flush=True)
        self.send_response(code)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("", 8080), Webhook).serve_forever()
"""


def webhook(namespace: Namespace, image: str) -> None:
    """Run a server that refuses the first message, and create the Secret with its URL."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pod = {"name": "hook", "image": image, "command": ["python", "-c", SERVER], "securityContext": security}
    user = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    metadata = {"name": "hook", "labels": {"app": "hook"}}
    objects = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"containers": [pod], "securityContext": user, "terminationGracePeriodSeconds": 1},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": {"app": "hook"}, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    ]
    namespace.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    namespace.kubectl("create", "secret", "generic", "hook", f"--from-literal=url=http://hook.{namespace.name}.svc/{URL_PATH}")


def test_the_attendant_notifies_a_webhook_once(namespace: Namespace, launcher: Launcher, image: str, tmp_path: Path) -> None:
    webhook(namespace, image)
    (tmp_path / "notified.yaml").write_text(
        textwrap.dedent(f"""\
        version: 1
        name: notified
        image: {image}
        supervise: false
        command: [python, -c, "import sys; print('no data'); sys.exit(3)"]
        limits: {{max_restarts: 0, grace_period: 1s}}
        notify: {{webhook: {{secret: hook, allow_http: true}}}}
        kubernetes: {{namespace: {namespace.name}, attendant: {{image: '{image}'}}}}
        """)
    )
    command = [sys.executable, "-m", "launcher", "render", str(tmp_path / "notified.yaml"), "--to", "kubernetes"]
    rendered = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert URL_PATH not in rendered
    kubectl("apply", "-f", "-", text=rendered)

    def received() -> str:
        return namespace.kubectl("logs", "pod/hook", check=False)

    def describe() -> str:
        return namespace.kubectl("logs", "job/notified-attendant", check=False) + received() + namespace.describe("notified")

    until(lambda: namespace.ends("notified").get("attendant") == "Complete", 240, "the attendant to have sent it and to be done", describe)
    refused, accepted = (line.split(" ", 2) for line in received().splitlines() if line.startswith(("503 ", "200 ")))
    assert (refused[:2], accepted[:2]) == (["503", f"/{URL_PATH}"], ["200", f"/{URL_PATH}"])
    message = json.loads(accepted[2])
    assert message == json.loads(refused[2])
    assert (message["event"], message["name"], message["state"]) == ("failed", "notified", "failed")
    assert message["reason"].startswith("chief, attempt 1: exit code 3")
    [notified] = launcher.status("notified")["notified"]
    assert notified.startswith("failed: sent by webhook at ")
    launcher("wait", "notified", code=1)
    assert len(received().splitlines()) == 2
    for arguments in ("logs job/notified-attendant", "get jobs,pods,configmaps,networkpolicies,events -o yaml"):
        assert URL_PATH not in namespace.kubectl(*arguments.split())
