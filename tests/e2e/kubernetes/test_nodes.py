"""Nodes change: tasks wait until there are enough GPUs, doctor reports taints, and pods are moved."""

import dataclasses
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import Namespace, kubectl, until
from tests.e2e.kubernetes.launching import TRAINING_TIMEOUT, Launcher, doctor, output_at_end, short_probe_timeouts
from tests.e2e.kubernetes.nodes import node_tool, reserved_nodes

pytestmark = [pytest.mark.kubernetes, pytest.mark.changes_nodes]  # its turn has to come first

# Each of two workers ends when it has connected to the other: neither ends before both have their GPUs.
MEET = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
host, port = config["cluster"]["worker"][0].split(":")
if config["task"]["index"] == 0:
    socket.create_server(("", int(port))).accept()
while config["task"]["index"] == 1:
    try:
        socket.create_connection((host, int(port)), 2).close()
        break
    except OSError:
        time.sleep(1)
"""


@pytest.fixture
def tool() -> Iterator[str]:
    """Return the program that changes the resources of nodes; skip if there is none, or the cluster has GPUs of its own."""
    program = node_tool()
    offered = kubectl("get", "nodes", "-o", r"jsonpath={.items[*].status.allocatable.nvidia\.com/gpu}").stdout.split()
    if any(number != "0" for number in offered):
        pytest.skip(f"the nodes offer GPUs already: {offered}")
    yield program
    for node in reserved_nodes().names:
        subprocess.run([program, "gpus", "0", node], check=True, timeout=60)


def test_a_run_waits_until_there_are_enough_gpus(launcher: Launcher, tool: str, image: str, tmp_path: Path) -> None:
    node, *_ = reserved_nodes().names
    subprocess.run([tool, "gpus", "2", node], check=True, timeout=60)
    file = tmp_path / "spec.yaml"
    file.write_text(
        "version: 1\nname: greedy\nstrategy: multi_worker_mirrored\nroles: {worker: {replicas: 2, gpus: 2}}\n"
        f"image: {image}\nsupervise: false\ncommand: [python, -c, {json.dumps(MEET)}]\n{reserved_nodes().spec('tensorboard: false')}"
    )
    up = launcher.start("up", str(file))
    try:

        def is_reported() -> bool:
            status = launcher.namespace.status("greedy")
            return status is not None and status.state == "pending" and "insufficient nvidia.com/gpu" in status.reason

        until(is_reported, 120, "the status to say so", lambda: launcher.namespace.status("greedy"))
        assert "greedy" in launcher("ls")
        subprocess.run([tool, "gpus", "4", node], check=True, timeout=60)
        output = output_at_end(up, TRAINING_TIMEOUT)
    finally:
        up.kill()
    assert up.returncode == 0, output
    assert "greedy succeeded" in output
    launcher("down", "greedy", "--delete-data", "--yes")


def test_an_untolerated_taint_is_named(namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short_probe_timeouts(monkeypatch)
    node_tool()  # skips unless the nodes are a testbed's
    file = tmp_path / "spec.yaml"
    file.write_text(f"version: 1\nname: tainted\ntrain: {{workload: mnist_mlp}}\n{reserved_nodes().spec()}")
    nodes = reserved_nodes().names
    kubectl("taint", "nodes", *nodes, "dedicated=others:NoSchedule")
    try:
        code, findings = doctor(namespace.name, str(file))
    finally:
        kubectl("taint", "nodes", *nodes, "dedicated-")
    assert code == 1
    assert findings["capacity"] == ("problem", "no node has room for 1 chief")
    assert "untolerated taint" in findings["image"][1]


# At SIGTERM it saves for longer than limits.node_lost, once; its next attempt is done.
SAVES = """
import os, signal, sys, time
def save(*_):
    time.sleep(8)
    open("/runs/saved", "w").close()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("saved" if os.path.exists("/runs/saved") else "new", flush=True)
while not os.path.exists("/runs/saved"):
    time.sleep(0.2)
"""
FAST = "import time; time.time = lambda clock=time.time: clock() + 600"


def test_a_pod_moved_off_a_node_that_answers_has_time_to_save_even_if_the_launchers_clock_is_wrong(
    launcher: Launcher, image: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAST)
    file = tmp_path / "spec.yaml"
    file.write_text(
        f"version: 1\nname: moved\nimage: {image}\nlimits: {{node_lost: 1s}}\nstorage: {{}}\ntensorboard: false\n"
        f"command: [python, -c, {json.dumps(SAVES)}]\n"
    )
    up = dataclasses.replace(launcher, env={**launcher.env, "PYTHONPATH": str(tmp_path)}).start("up", str(file))
    namespace = launcher.namespace

    def is_running() -> bool:
        return "new" in namespace.kubectl("logs", "job/moved-chief", check=False)

    try:
        until(is_running, 120, "its program to run", lambda: namespace.describe("moved"))
        (pod,) = namespace.pods("moved")
        name = pod["metadata"]["name"]
        # As the taint manager does it, without a taint on a node that others use.
        target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
        namespace.kubectl("patch", "pod", name, "--subresource=status", "-p", json.dumps({"status": {"conditions": [target]}}))
        namespace.kubectl("delete", "pod", name, "--wait=false")
        output = output_at_end(up, TRAINING_TIMEOUT)
    finally:
        up.kill()
        launcher("down", "moved", "--now", "--delete-data", "--yes")
    assert up.returncode == 0, output
    assert "marked as failed" not in output
    assert "saved" in output
