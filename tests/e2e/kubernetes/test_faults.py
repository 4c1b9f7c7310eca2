"""One run that goes on through faults, from where it was: a process killed, a pod evicted, a node cut off or powered off, no room for the chief."""

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes.cluster import Namespace, kubectl, until
from tests.e2e.kubernetes.launching import Launcher, testbed

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1500)]  # its turn has to come first

ALONE = True  # nodes come and go
NAME = "faults"
# TensorBoard shares a volume of one node with the chief, and is not to hold that to a node that is lost.
SPEC = f"""\
version: 1
name: {NAME}
strategy: parameter_server
roles: {{chief: {{}}, ps: {{replicas: 1}}, worker: {{replicas: 2}}}}
train: {{workload: mnist_mlp, steps: 100000000, steps_per_execution: 50, report_every_steps: 1000, checkpoint: {{every_seconds: 2}}}}
limits: {{node_lost: 5s}}
storage: {{access: ReadWriteOnce}}
kubernetes: {{placement: spread}}
"""
# Kills the process that trains, the trainer's one child.
KILL = "import os, signal, pathlib; os.kill(int(pathlib.Path('/proc/1/task/1/children').read_text().split()[0]), signal.SIGKILL)"
ALIVE = 180.0  # seconds for steps to flow again, on a machine that does much else
INDEX = "batch.kubernetes.io/job-completion-index"


@pytest.fixture(scope="module")
def run(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Start the run and wait for its first checkpoint."""
    file: Path = tmp_path_factory.mktemp(NAME) / "spec.yaml"
    file.write_text(SPEC)
    launcher("up", str(file), "--detach")
    until(lambda: saved(launcher.namespace) > 0, ALIVE, "the first checkpoint", lambda: launcher.namespace.describe(NAME))
    yield launcher
    launcher("down", NAME, "--now", "--delete-data", "--yes")


def pods_of(namespace: Namespace, role: str, index: int = 0) -> list[dict[str, Any]]:
    """Return the pods of a task, the newest last."""
    pods = [one for one in namespace.pods(NAME, role) if one["metadata"]["annotations"][INDEX] == str(index)]
    return sorted(pods, key=lambda one: str(one["metadata"]["creationTimestamp"]))


def pod(namespace: Namespace, role: str) -> dict[str, Any]:
    """Return the newest pod of the first task of a role."""
    return pods_of(namespace, role)[-1]


def chief_events(namespace: Namespace) -> list[dict[str, Any]]:
    """Return what the newest pod of the chief has told; nothing while its node does not answer."""
    pods = pods_of(namespace, "chief")
    return namespace.events_of(pods[-1]) if pods else []


def saved(namespace: Namespace) -> int:
    """Return the step of the last checkpoint."""
    return max((event["step"] for event in chief_events(namespace) if event["event"] == "checkpoint"), default=0)


@contextlib.contextmanager
def going_on(namespace: Namespace, role: str, fault: str) -> Iterator[None]:
    """Do something to the run in the block: then steps flow again, from the last checkpoint before or later.

    Prints how long that took, as the chief's own clock has it (docs/performance.md).
    """
    until(lambda: saved(namespace) > 0, ALIVE, "a checkpoint", lambda: namespace.describe(NAME))
    before = saved(namespace)
    began = time.time()
    yield
    now = time.time()
    new: list[dict[str, Any]] = []

    def flows() -> bool:
        new[:] = [event for event in chief_events(namespace) if event["event"] == "progress" and event["time"] > now]
        return bool(new)

    until(flows, ALIVE, "steps to flow again", lambda: namespace.describe(NAME))
    print(f"{fault}, {role}: steps flow again {new[0]['time'] - began:.1f} s after it began")
    assert min(event["step"] for event in new) > before
    assert set(namespace.ends(NAME).values()) == {""}


@pytest.mark.parametrize("role", ["worker", "ps", "chief"])
def test_a_process_killed_comes_back_in_its_pod(role: str, run: Launcher) -> None:
    namespace = run.namespace
    before = pod(namespace, role)

    def restarted() -> bool:
        return any(event["event"] == "restarting" and event["exit_code"] == 137 for event in namespace.events_of(before))

    with going_on(namespace, role, "process killed"):
        namespace.kubectl("exec", before["metadata"]["name"], "--", "python", "-c", KILL)
        until(restarted, 30, "the trainer to tell of it", lambda: namespace.describe(NAME))
    assert pod(namespace, role)["metadata"]["uid"] == before["metadata"]["uid"]


def test_the_chief_evicted_goes_on_from_its_checkpoint(run: Launcher) -> None:
    namespace = run.namespace
    before = pod(namespace, "chief")
    with going_on(namespace, "chief", "pod evicted"):
        evict(namespace, before)
        until(lambda: is_replaced(namespace, "chief", before), 120, "another pod", lambda: namespace.describe(NAME))
    restored = [event["step"] for event in chief_events(namespace) if event["event"] == "restored"]
    assert restored
    assert restored[-1] > 0
    chief, *_ = run.status(NAME)["tasks"]  # of a launcher that did not see it happen
    assert "its pod was deleted" in [restart["cause"] for restart in chief["restarts"]]


def test_a_chief_for_which_there_is_no_node_is_told_of_though_the_others_run(run: Launcher) -> None:
    namespace = run.namespace
    until(lambda: run.status(NAME)["state"] == "running", 60, "it to run")
    nodes = kubectl("get", "nodes", "-o", "name").stdout.split()
    before = pod(namespace, "chief")
    with going_on(namespace, "chief", "no node for the pod"):
        kubectl("cordon", *nodes)
        try:
            evict(namespace, before)

            def told() -> bool:
                status = run.status(NAME)
                return (status["state"], "unschedulable" in status["reason"]) == ("pending", True)

            until(told, 90, "the status to say so", lambda: str(run.status(NAME)))
        finally:
            kubectl("uncordon", *nodes)
    until(lambda: run.status(NAME)["state"] == "running", 60, "it to run", lambda: str(run.status(NAME)))


def test_a_node_cut_off_for_20_seconds_is_waited_for(run: Launcher) -> None:
    namespace = run.namespace
    chiefs = pod(namespace, "chief")["spec"]["nodeName"]
    workers = [pods_of(namespace, "worker", index)[-1] for index in (0, 1)]
    node = next((one["spec"]["nodeName"] for one in workers if one["spec"]["nodeName"] != chiefs), chiefs)
    with going_on(namespace, "worker", "node cut off for 20 s"):
        subprocess.run([testbed(), "node", "cut", node], check=True, timeout=60)
        try:
            time.sleep(20)
        finally:
            subprocess.run([testbed(), "node", "heal", node], check=True, timeout=60)
        # Whether the cluster moves its pods meanwhile is a matter of how long it waits; here it nearly does, and sometimes does.
        until(lambda: at_rest(namespace, node), 120, "the cluster to be at rest", lambda: namespace.describe(NAME))


@pytest.mark.parametrize("role", ["worker", "ps", "chief"])
def test_a_node_powered_off_is_told_of_and_its_tasks_go_on_while_somebody_watches(role: str, run: Launcher) -> None:
    namespace = run.namespace
    lost = pod(namespace, role)
    task = "chief" if role == "chief" else f"{role}-0"
    node = lost["spec"]["nodeName"]
    power = testbed()
    watcher = run.start("wait", NAME)
    try:
        with going_on(namespace, role, "node powered off"):
            subprocess.run([power, "node", "off", node], check=True, timeout=60)

            def told() -> bool:
                reasons = {one["name"]: str(one["reason"]) for one in run.status(NAME)["tasks"]}
                return reasons[task] == f"its node {node} does not answer"

            until(told, 120, "the status to say so", lambda: str(run.status(NAME)))
            until(lambda: is_replaced(namespace, role, lost), 120, "a pod in its place", lambda: namespace.describe(NAME))
        watcher.terminate()
        written, _ = watcher.communicate(timeout=20)
        assert f"{task}: the node {node} is lost; its pod {lost['metadata']['name']} was given up, and is replaced" in written
        # The chief's board is on its node, and would keep it there.
        assert role != "chief" or f"tensorboard-0: the node {node} is lost; its pod {NAME}-tensorboard-" in written
    finally:
        watcher.kill()
        watcher.communicate()
        subprocess.run([power, "node", "on", node], check=True, timeout=120)


def at_rest(namespace: Namespace, node: str) -> bool:
    """Tell whether a node is as good as any other again, and no pod of the run is about to go or to come."""
    taints = kubectl("get", "node", node, "-o", "jsonpath={.spec.taints}").stdout
    pods = namespace.pods(NAME)
    going = [one for one in pods if one["metadata"].get("deletionTimestamp")]
    return not taints and not going and sum(one["status"]["phase"] == "Running" for one in pods) == 4


def evict(namespace: Namespace, victim: dict[str, Any]) -> None:
    """Evict a pod as `kubectl drain` does."""
    name = victim["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace.name}}
    kubectl("create", "--raw", f"/api/v1/namespaces/{namespace.name}/pods/{name}/eviction", "-f", "-", text=json.dumps(eviction))


def is_replaced(namespace: Namespace, role: str, old: dict[str, Any]) -> bool:
    """Tell whether the first task of a role has another pod; between the two there may be none."""
    uids = {one["metadata"]["uid"] for one in pods_of(namespace, role)}
    return bool(uids - {old["metadata"]["uid"]})
