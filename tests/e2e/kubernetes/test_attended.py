"""A run that kubectl applied and no launcher watches: the nodes of its tasks and of its attendant are powered off in turn, and stay off.

It completes at its last step. The same run without an attendant waits for the first of these nodes.
"""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.kubernetes.cluster import ROOT, Namespace, kubectl, stand_in_spec, until
from tests.e2e.kubernetes.faults import INDEX, RECOVERY_TIMEOUT
from tests.e2e.kubernetes.nodes import node_tool, power_on, reserved_nodes

pytestmark = [pytest.mark.kubernetes, pytest.mark.changes_nodes, pytest.mark.takes_minutes]

TASKS = ("chief", "ps-0", "worker-0", "worker-1")
# All nodes but one are lost, and every task and the attendant has to lose its node: the attendant is on the ps's node if possible.
BESIDE = {
    "weight": 100,
    "podAffinityTerm": {"labelSelector": {"matchLabels": {"app.kubernetes.io/component": "ps"}}, "topologyKey": "kubernetes.io/hostname"},
}
AFFINITY = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [BESIDE]}}


class Applied:
    """A run whose rendered files kubectl has applied."""

    def __init__(self, namespace: Namespace, name: str, image: str, steps: int, directory: Path, *, attended: bool) -> None:
        self.namespace, self.name, self.steps = namespace, name, steps
        options: dict[str, Any] = {"attendant": attended, "namespace": namespace.name, "placement": "spread"}
        options["overrides"] = {"attendant": {"spec": {"affinity": AFFINITY}}} if attended else {}
        spec = yaml.safe_load(reserved_nodes().spec() + stand_in_spec(steps, checkpoint={"every_seconds": 2}))
        spec["kubernetes"] |= options
        spec |= {"version": 1, "name": name, "image": image, "strategy": "parameter_server"}
        spec |= {"roles": {"chief": {}, "ps": {}, "worker": {"replicas": 2}}, "storage": {"access": "ReadWriteMany"}}
        spec |= {"tensorboard": False, "limits": {"node_lost": "5s"}}
        file = directory / f"{name}.yaml"
        file.write_text(yaml.safe_dump(spec))
        command = [sys.executable, "-m", "launcher", "render", str(file), "--to", "kubernetes"]
        rendered = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
        kubectl("apply", "-f", "-", text=rendered)

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return the newest pod of each task, and of the attendant."""
        pods = sorted(self.namespace.objects("Pod", self.name), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        return {_task(pod): pod for pod in pods}

    def at_work(self, *, without: list[str]) -> bool:
        """Return whether all its pods run, none of them on these nodes."""
        pods = self.pods()
        run = [task for task, pod in pods.items() if pod["status"]["phase"] == "Running" and pod["spec"].get("nodeName") not in without]
        return set(TASKS) <= set(run) and len(run) == len(pods)

    def describe(self) -> str:
        """Return objects, events and logs for the message of a failed test."""
        log = self.namespace.kubectl("logs", f"job/{self.name}-attendant", "--tail=30", check=False)
        return f"{self.namespace.describe(self.name)}\n{log}"


def _task(pod: dict[str, Any]) -> str:
    role = str(pod["metadata"]["labels"]["app.kubernetes.io/component"])
    return role if role in {"chief", "attendant"} else f"{role}-{pod['metadata']['annotations'][INDEX]}"


@pytest.fixture
def off() -> Iterator[list[str]]:
    """Return a list for the nodes that a test powers off; power them on at the end."""
    nodes: list[str] = []
    yield nodes
    with ThreadPoolExecutor() as pool:
        list(pool.map(power_on, nodes))


def test_a_run_with_an_attendant_survives_the_loss_of_the_nodes_of_all_its_tasks_and_of_the_attendant(
    namespace: Namespace, image: str, tmp_path: Path, off: list[str]
) -> None:
    power, most = node_tool(), len(reserved_nodes().names) - 1
    unattended = Applied(namespace, "unattended", image, 1_000_000, tmp_path, attended=False)
    run = Applied(namespace, "attended", image, 150 + 300 * (most - 1), tmp_path, attended=True)
    for applied in (unattended, run):
        until(lambda applied=applied: applied.at_work(without=[]), RECOVERY_TIMEOUT, f"{applied.name} to run", applied.describe)  # type: ignore[misc]
    lost: set[str] = set()
    for task in ("attendant", "ps-0", "worker-0", "chief"):
        pods = run.pods()
        if task in lost or len(off) == most:
            continue
        node = pods[task]["spec"]["nodeName"]
        lost |= {name for name, pod in pods.items() if pod["spec"]["nodeName"] == node}
        off.append(node)
        print(f"{node} is powered off; these have lost their node by now: {', '.join(sorted(lost))}")
        assert namespace.ends(run.name)["chief"] == ""  # it has steps left
        subprocess.run([power, "node", "off", node], check=True, timeout=60)
        until(lambda: run.at_work(without=off), RECOVERY_TIMEOUT, f"its pods to run elsewhere than on {', '.join(off)}", run.describe)
    assert "attendant" in lost
    assert most < 3 or lost >= {*TASKS[:3], "attendant"}

    def complete() -> bool:
        return set(namespace.ends(run.name).values()) == {"Complete"}

    until(complete, RECOVERY_TIMEOUT, "all its Jobs to be complete", run.describe)
    assert set(namespace.ends(run.name)) == {"chief", "ps", "worker", "attendant"}
    (ended,) = [event for event in namespace.events_of(run.pods()["chief"]) if event["event"] == "done"]
    assert ended["step"] == run.steps
    status = namespace.status(run.name)
    assert status is not None
    assert (status.state, status.step) == ("succeeded", run.steps)
    running = [pod["metadata"]["name"] for pod in namespace.objects("Pod", run.name) if pod["status"]["phase"] in {"Pending", "Running"}]
    assert running == []  # no node stays occupied
    stuck = [
        task for task, pod in unattended.pods().items() if pod["spec"].get("nodeName") in off and pod["metadata"].get("deletionTimestamp")
    ]
    assert stuck  # no attendant marks these as failed
