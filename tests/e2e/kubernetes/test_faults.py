"""One run that goes on through faults: a process killed, a pod evicted, a node powered off."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.backend.kubernetes.observe import Seen, status
from launcher.backend.model import RunStatus
from tests.e2e.kubernetes.cluster import ROOT, Namespace, kubectl, until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(480)]

NAME = "faults"
SPEC = f"""\
version: 1
name: {NAME}
strategy: parameter_server
roles: {{chief: {{}}, ps: {{replicas: 1}}, worker: {{replicas: 2}}}}
train: {{workload: mnist_mlp, steps: 100000000, checkpoint: {{every_seconds: 2}}}}
limits: {{node_lost: 5s}}
"""
# Kills the process that trains, the trainer's one child.
KILL = "import os, signal, pathlib; os.kill(int(pathlib.Path('/proc/1/task/1/children').read_text().split()[0]), signal.SIGKILL)"
ALIVE = 180.0  # seconds for steps to flow again, on a machine that does much else


@pytest.fixture(scope="module")
def run(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    """Start the run and wait for its first steps."""
    file: Path = tmp_path_factory.mktemp(NAME) / "spec.yaml"
    file.write_text(SPEC)
    subprocess.run(launcher(namespace, "up", str(file), "--detach"), cwd=ROOT, check=True, timeout=60)
    until(lambda: step(namespace) > 0, ALIVE, "the first steps", lambda: namespace.describe(NAME))
    yield namespace
    namespace.kubectl("delete", "jobs", "--all", "--wait=false")
    shutil.rmtree(runs_of(namespace))


def launcher(namespace: Namespace, verb: str, *rest: str) -> list[str]:
    """Return a command line of the launcher for the namespace."""
    return [
        sys.executable,
        "-m",
        "launcher",
        verb,
        *rest,
        "--on",
        "kubernetes",
        "--namespace",
        namespace.name,
        "--runs",
        runs_of(namespace),
    ]


def runs_of(namespace: Namespace) -> str:
    """Return the directory of the launcher's runs in the namespace."""
    return str(Path(tempfile.gettempdir(), f"runs-{namespace.name}"))


def chief_events(namespace: Namespace) -> list[dict[str, Any]]:
    return namespace.events(NAME, "chief")


def step(namespace: Namespace, since: float = 0) -> int:
    """Return the last step that the chief told of after a time, seconds since the epoch."""
    told = [event["step"] for event in chief_events(namespace) if event["event"] == "progress" and event["time"] > since]
    return max(told, default=0)


def flows(namespace: Namespace) -> None:
    """Wait until steps are made from now on."""
    now = time.time()
    until(lambda: step(namespace, now) > 0, ALIVE, "steps to flow again", lambda: namespace.describe(NAME))


def pod(namespace: Namespace, role: str, index: int = 0) -> dict[str, Any]:
    """Return the newest pod of a task."""
    key = "batch.kubernetes.io/job-completion-index"
    pods = [one for one in namespace.pods(NAME, role) if one["metadata"]["annotations"][key] == str(index)]
    return max(pods, key=lambda one: str(one["metadata"]["creationTimestamp"]))


def is_replaced(namespace: Namespace, role: str, old: dict[str, Any]) -> bool:
    """Tell whether the first task of a role has another pod; between the two there may be none."""
    key = "batch.kubernetes.io/job-completion-index"
    uids = {one["metadata"]["uid"] for one in namespace.pods(NAME, role) if one["metadata"]["annotations"][key] == "0"}
    return bool(uids - {old["metadata"]["uid"]})


def seen(namespace: Namespace) -> RunStatus:
    return status(Seen(NAME, namespace.objects("jobs", NAME), namespace.pods(NAME)), time.time())


@pytest.mark.parametrize("role", ["worker", "ps", "chief"])
def test_a_process_killed_comes_back_in_its_pod(role: str, run: Namespace) -> None:
    before = pod(run, role)
    run.kubectl("exec", before["metadata"]["name"], "--", "python", "-c", KILL)

    def restarted() -> bool:
        return any(event["event"] == "restarting" and event["exit_code"] == 137 for event in run.events(NAME, role))

    until(restarted, 30, "the trainer to tell of it", lambda: run.describe(NAME))
    flows(run)
    assert pod(run, role)["metadata"]["uid"] == before["metadata"]["uid"]
    assert set(run.ends(NAME).values()) == {""}


def test_the_chief_evicted_goes_on_from_its_checkpoint(run: Namespace) -> None:
    before = pod(run, "chief")
    name = before["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": run.name}}
    kubectl("create", "--raw", f"/api/v1/namespaces/{run.name}/pods/{name}/eviction", "-f", "-", text=json.dumps(eviction))
    until(lambda: is_replaced(run, "chief", before), 120, "another pod", lambda: run.describe(NAME))
    flows(run)
    restored = [event["step"] for event in chief_events(run) if event["event"] == "restored"]
    assert restored
    assert restored[-1] > 0
    assert set(run.ends(NAME).values()) == {""}


def test_a_node_powered_off_is_told_of_and_its_tasks_go_on_while_somebody_watches(run: Namespace) -> None:
    tool = os.environ.get("KUBE_TESTBED")
    if not tool:
        pytest.skip("KUBE_TESTBED names no program that powers nodes off and on")
    lost = pod(run, "worker")
    node = lost["spec"]["nodeName"]
    watcher = subprocess.Popen(launcher(run, "wait", NAME), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    subprocess.run([tool, "node", "off", node], check=True, timeout=60)
    try:

        def told() -> bool:
            reasons = {task.name: task.reason for task in seen(run).tasks}
            return reasons["worker-0"] == f"its node {node} does not answer"

        until(told, 120, "the status to say so", lambda: str(seen(run)))

        until(lambda: is_replaced(run, "worker", lost), 120, "a pod in its place", lambda: run.describe(NAME))
        flows(run)
        watcher.terminate()
        written, _ = watcher.communicate(timeout=20)
        assert f"worker-0: the node {node} is lost; its pod {lost['metadata']['name']} was given up, and is replaced" in written
    finally:
        watcher.kill()
        subprocess.run([tool, "node", "on", node], check=True, timeout=120)
    assert set(run.ends(NAME).values()) == {""}
