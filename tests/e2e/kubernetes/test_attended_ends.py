"""Runs that kubectl applied, with attendants and without a launcher: their remaining tasks end, and each Job shows how."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import ROOT, Namespace, kubectl, until
from tests.e2e.kubernetes.launching import Launcher

pytestmark = pytest.mark.kubernetes

# For images without the trainer: the chief ends once the other tasks work, which never end.
PROGRAM = """\
import contextlib, json, os, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
cluster, task = config["cluster"], config["task"]
port = cluster[task["type"]][task["index"]].rpartition(":")[2]
print("at work", flush=True)
if task["type"] != "chief":
    with socket.create_server(("", int(port))):
        time.sleep(3600)
peers = [*cluster["ps"], *cluster["worker"]]
while peers:
    host, _, port = peers[0].rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
        peers.pop(0)
    time.sleep(0.2)
time.sleep(1)
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture(scope="module")
def applied(namespace: Namespace, image: str, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """Apply the runs of this module, all at once."""
    directory = tmp_path_factory.mktemp("specs")
    for name, limits in (
        ("done", "limits: {worker_grace: 1s, grace_period: 1s}\n"),
        ("broken", "env: {CODE: '2'}\nlimits: {max_restarts: 0, grace_period: 5s}\n"),
        ("never", "limits: {start_timeout: 10s, grace_period: 1s}\n"),
    ):
        file = Path(directory, f"{name}.yaml")
        task_image = "no-such-registry.invalid/none:1" if name == "never" else image
        roles = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {replicas: 2}}\nsupervise: false\n"
        options = f"kubernetes: {{namespace: {namespace.name}, attendant: {{image: '{image}'}}}}\n"
        program = f"image: {task_image}\ncommand: [python, -c, {json.dumps(PROGRAM)}]\n"
        file.write_text(f"version: 1\nname: {name}\n{roles}{options}{program}{limits}")
        command = [sys.executable, "-m", "launcher", "render", str(file), "--to", "kubernetes"]
        kubectl("apply", "-f", "-", text=subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout)
    return namespace


def ends_by_role(namespace: Namespace, run: str) -> dict[str, str]:
    """Wait until the attendant of a run is done; return the end of each of its Jobs, `suspended` or empty without one."""

    def describe() -> str:
        return namespace.kubectl("logs", f"job/{run}-attendant", check=False) + namespace.describe(run)

    until(lambda: namespace.ends(run).get("attendant") == "Complete", 180, f"the attendant of {run} to be done", describe)
    at_work = [pod["metadata"]["name"] for pod in namespace.objects("Pod", run) if pod["status"]["phase"] in {"Pending", "Running"}]
    assert at_work == []  # no node stays occupied
    suspended = {job["metadata"]["name"].removeprefix(f"{run}-"): job["spec"].get("suspend") for job in namespace.objects("Job", run)}
    return {role: end or ("suspended" if suspended[role] else "") for role, end in namespace.ends(run).items()}


def test_the_remaining_tasks_of_a_succeeded_run_are_ended(applied: Namespace, launcher: Launcher) -> None:
    assert ends_by_role(applied, "done") == dict.fromkeys(("chief", "ps", "worker", "attendant"), "Complete")
    assert launcher.status("done")["state"] == "succeeded"


def test_the_remaining_jobs_of_a_failed_run_are_suspended(applied: Namespace, launcher: Launcher) -> None:
    assert ends_by_role(applied, "broken") == {"chief": "Failed", "ps": "suspended", "worker": "suspended", "attendant": "Complete"}
    status = launcher.status("broken")
    assert status["state"] == "failed"
    assert status["reason"].startswith("chief, attempt 1: exit code 2")
    assert "at work" in launcher("logs", "broken", "--role", "ps")  # of deleted pods


def test_a_run_that_never_starts_is_suspended_with_the_reason(applied: Namespace, launcher: Launcher) -> None:
    assert ends_by_role(applied, "never") == {"chief": "suspended", "ps": "suspended", "worker": "suspended", "attendant": "Complete"}
    status = launcher.status("never")
    assert status["state"] == "failed"
    assert status["reason"].startswith("not started within limits.start_timeout (10 s)")
