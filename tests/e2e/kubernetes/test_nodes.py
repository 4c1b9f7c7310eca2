"""Nodes change: tasks wait for GPUs until there are enough, and doctor sees taints."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import Namespace, kubectl, until
from tests.e2e.kubernetes.launching import UP, Launcher, doctor, impatient, said_to_its_end
from tests.e2e.kubernetes.nodes import changeable, node_tool

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
        f"image: {image}\nsupervise: false\ncommand: [python, -c, {json.dumps(MEET)}]\n{changeable().spec('tensorboard: false')}"
    )
    up = launcher.start("up", str(file))
    try:

        def told() -> bool:
            status = launcher.namespace.status("greedy")
            return status is not None and status.state == "pending" and "insufficient nvidia.com/gpu" in status.reason

        until(told, 120, "the status to say so", lambda: launcher.namespace.status("greedy"))
        assert "greedy" in launcher("ls")
        subprocess.run([tool, "gpus", "4", node], check=True, timeout=60)
        written = said_to_its_end(up, UP)
    finally:
        up.kill()
    assert up.returncode == 0, written
    assert "greedy succeeded" in written
    launcher("down", "greedy", "--delete-data", "--yes")


def test_a_taint_that_nobody_tolerates_is_named(namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
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
