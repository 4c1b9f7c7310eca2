"""Nodes change: tasks wait for GPUs until there are enough, doctor sees taints, a node that is lost is not waited for."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import Namespace, kubectl, until
from tests.e2e.kubernetes.launching import UP, Launcher, doctor
from tests.e2e.kubernetes.nodes import changeable, node_tool, power_on

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1500), pytest.mark.changes_nodes]  # its turn has to come first

# Each of two workers ends when it has met the other: neither does before both have their GPUs.
MEET = """
import json, os, socket, time
told = json.loads(os.environ["TF_CONFIG"])
host, port = told["cluster"]["worker"][0].split(":")
if told["task"]["index"] == 0:
    socket.create_server(("", int(port))).accept()
while told["task"]["index"] == 1:
    try:
        socket.create_connection((host, int(port)), 2).close()
        break
    except OSError:
        time.sleep(1)
"""


@pytest.fixture
def tool() -> Iterator[str]:
    """Return the program that changes what nodes offer; skip where there is none, or the cluster has GPUs of its own."""
    found = node_tool()
    offered = kubectl("get", "nodes", "-o", r"jsonpath={.items[*].status.allocatable.nvidia\.com/gpu}").stdout.split()
    if any(number != "0" for number in offered):
        pytest.skip(f"the nodes offer GPUs already: {offered}")
    yield found
    for node in changeable().names:
        subprocess.run([found, "gpus", "0", node], check=True, timeout=60)


def test_a_run_waits_for_gpus_and_goes_on_when_there_are_enough(launcher: Launcher, tool: str, image: str, tmp_path: Path) -> None:
    node, *_ = changeable().names
    subprocess.run([tool, "gpus", "2", node], check=True, timeout=60)
    file = tmp_path / "spec.yaml"
    file.write_text(
        "version: 1\nname: greedy\nstrategy: multi_worker_mirrored\nroles: {worker: {replicas: 2, gpus: 2}}\n"
        f"image: {image}\ncommand: [python, -c, {json.dumps(MEET)}]\n{changeable().spec('tensorboard: false')}"
    )
    up = launcher.start("up", str(file))
    try:

        def told() -> bool:
            status = launcher.status("greedy")
            return status["state"] == "pending" and "insufficient nvidia.com/gpu" in status["reason"]

        until(lambda: "greedy" in launcher("ls"), 60, "the run to be there")
        until(told, 90, "the status to say so", lambda: str(launcher.status("greedy")))
        subprocess.run([tool, "gpus", "4", node], check=True, timeout=60)
        written, _ = up.communicate(timeout=UP)
    finally:
        up.kill()
    assert up.returncode == 0, written
    assert "greedy succeeded" in written
    launcher("down", "greedy", "--delete-data", "--yes")


def test_a_taint_that_nobody_tolerates_is_named(namespace: Namespace, tmp_path: Path) -> None:
    node_tool()  # it changes nodes: not of any cluster
    file = tmp_path / "spec.yaml"
    file.write_text(f"version: 1\nname: kept-off\ntrain: {{workload: mnist_mlp}}\n{changeable().spec()}")
    nodes = changeable().names
    kubectl("taint", "nodes", *nodes, "dedicated=others:NoSchedule")
    try:
        code, found = doctor(namespace.name, str(file))
    finally:
        kubectl("taint", "nodes", *nodes, "dedicated-")
    assert code == 1
    assert found["capacity"] == ("problem", "no node has room for 1 chief")
    assert "untolerated taint" in found["image"][1]


def test_a_failed_run_starts_again_though_a_pod_of_it_is_on_a_lost_node(launcher: Launcher, image: str, tmp_path: Path) -> None:
    name, namespace, power = "elsewhere", launcher.namespace, node_tool()
    fails = "import os, sys, time\nwhile not os.path.exists('/tmp/fail'):\n    time.sleep(0.2)\nsys.exit(2)"
    file = tmp_path / "spec.yaml"
    file.write_text(
        f"version: 1\nname: {name}\nstrategy: parameter_server\nroles: {{chief: {{}}, ps: {{}}, worker: {{replicas: 2}}}}\n"
        f"image: {image}\ncommand: [python, -c, {json.dumps(fails)}]\n{changeable().spec('placement: spread, tensorboard: false')}"
    )

    def all_run() -> bool:
        return [pod["status"]["phase"] for pod in namespace.pods(name)] == ["Running"] * 4

    launcher("up", str(file), "--detach")
    until(all_run, 120, "its pods to run", lambda: namespace.describe(name))
    (chief,) = namespace.pods(name, "chief")
    lost = next(pod for pod in namespace.pods(name, "worker") if pod["spec"]["nodeName"] != chief["spec"]["nodeName"])
    node = lost["spec"]["nodeName"]
    subprocess.run([power, "node", "off", node], check=True, timeout=60)
    try:
        deleted = ("get", "pod", lost["metadata"]["name"], "-o", "jsonpath={.metadata.deletionTimestamp}")
        until(lambda: namespace.kubectl(*deleted) != "", 120, "the cluster to give its pod up")
        namespace.kubectl("exec", chief["metadata"]["name"], "--", "touch", "/tmp/fail")
        until(lambda: namespace.ends(name).get("chief") == "Failed", 60, "the chief to fail", lambda: namespace.describe(name))
        launcher("up", str(file), "--detach", "--resume", timeout=200)
        assert lost["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in namespace.pods(name)}
        until(all_run, 120, "its pods to run", lambda: namespace.describe(name))
    finally:
        power_on(node)
    launcher("down", name, "--now", "--delete-data", "--yes")
