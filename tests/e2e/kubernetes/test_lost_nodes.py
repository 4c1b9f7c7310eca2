"""Two runs whose nodes take no pods, are cut off, and are lost: they go on, each from where it was.

One is of parameter servers, with an evaluator, on a volume of one node, and computes nothing; the other's workers are alike, share a
volume, and train: TensorFlow has to notice a peer that only falls silent.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import kubectl, paced, stand_in_spec, until
from tests.e2e.kubernetes.faults import RECOVERY_TIMEOUT, Run, recovering
from tests.e2e.kubernetes.launching import Launcher, output_at_end
from tests.e2e.kubernetes.nodes import is_usable, node_tool, power_on, reserved_nodes

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(1500),
    pytest.mark.changes_nodes,
    pytest.mark.takes_minutes,
]  # its turn has to come first

# TensorBoard shares a volume of one node with the chief, and is not to hold that to a node that is lost.
SERVED = """\
strategy: parameter_server
roles: {chief: {}, ps: {replicas: 1}, worker: {replicas: 2}, evaluator: {}}
storage: {access: ReadWriteOnce}
"""
ALIKE = """\
strategy: multi_worker_mirrored
roles: {chief: {}, worker: {replicas: 1}}
"""


@pytest.fixture(scope="module")
def served(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Start the run of parameter servers, once for the tests below."""
    run = Run(launcher, "served", ("chief", "worker-0", "worker-1", "ps-0", "evaluator"))
    engine = stand_in_spec(checkpoint={"every_seconds": 3})
    run.start(SERVED + reserved_nodes().spec("placement: spread") + engine, tmp_path_factory.mktemp("specs") / run.name)
    yield run
    launcher("down", run.name, "--now", "--delete-data", "--yes")


@pytest.fixture(scope="module")
def alike(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Start the run whose workers are alike, once for the tests below."""
    run = Run(launcher, "alike", ("chief", "worker-0"))
    run.start(ALIKE + reserved_nodes().spec("tensorboard: false") + paced(every_seconds=3), tmp_path_factory.mktemp("specs") / run.name)
    yield run
    launcher("down", run.name, "--now", "--delete-data", "--yes")


@pytest.fixture
def runs(served: Run, alike: Run) -> tuple[Run, Run]:
    """Return both, at rest and with a checkpoint."""
    for run in (served, alike):
        run.await_steady()
    return served, alike


def test_a_chief_evicted_waits_for_a_node_is_told_of_and_goes_on_from_its_checkpoint(runs: tuple[Run, Run]) -> None:
    served, _ = runs
    namespace = served.launcher.namespace
    until(lambda: namespace.runs(served.name), 60, "it to run", lambda: namespace.status(served.name))
    node_tool()  # it changes nodes: not of any cluster
    with recovering((served,), "chief evicted, and no node for it", "chief"):
        kubectl("cordon", *reserved_nodes().names)
        try:
            served.evict("chief")

            def told() -> bool:  # though the others run
                status = served.status()
                return (status["state"], "unschedulable" in status["reason"]) == ("pending", True)

            until(told, 90, "the status to say so", served.status)
        finally:
            kubectl("uncordon", *reserved_nodes().names)
    restored = [event["step"] for event in served.events("chief") if event["event"] == "restored"]
    assert restored
    assert restored[-1] > 0
    until(lambda: namespace.runs(served.name), 60, "it to run", lambda: namespace.status(served.name))
    chief, *_ = served.status()["tasks"]  # of a launcher that did not see it happen
    assert "its pod was deleted, or its node drained" in [restart["cause"] for restart in chief["restarts"]]


def test_a_node_that_is_cut_off_until_the_cluster_notices_is_waited_for(runs: tuple[Run, Run]) -> None:
    served, _ = runs
    chiefs = served.node("chief")
    node = next((served.node(task) for task in ("worker-0", "worker-1") if served.node(task) != chiefs), chiefs)
    with recovering(runs, f"{node} cut off", "worker-0"):
        subprocess.run([node_tool(), "node", "cut", node], check=True, timeout=60)
        try:
            until(lambda: not is_usable(node), 60, f"the cluster to notice that {node} is silent", served.describe)
        finally:
            subprocess.run([node_tool(), "node", "heal", node], check=True, timeout=60)
        # Whether the cluster moves its pods all the same is a matter of how long it takes to see it again.
        until(lambda: is_usable(node) and all(run.is_steady() for run in runs), 120, "the cluster to be steady", served.describe)


class Elsewhere:
    """A run that is to fail while one of its pods is on a lost node, and to start again on the others."""

    NAME = "elsewhere"
    PROGRAM = "import os, sys, time\nwhile not os.path.exists('/tmp/fail'):\n    time.sleep(0.2)\nsys.exit(2)"

    def __init__(self, launcher: Launcher, image: str, directory: Path) -> None:
        self.launcher, self.namespace, self.spec = launcher, launcher.namespace, directory / "spec.yaml"
        roles = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {replicas: 2}}\n"
        command = f"image: {image}\nsupervise: false\ncommand: [python, -c, {json.dumps(self.PROGRAM)}]\n"
        # A pod on a lost node is waited for until it has had that time to save, and a minute.
        options = "limits: {grace_period: 1s}\n" + reserved_nodes().spec("placement: spread, tensorboard: false")
        self.spec.write_text(f"version: 1\nname: {self.NAME}\n{roles}{command}{options}")

    def await_all(self) -> None:
        """Wait until all its pods run."""

        def all_run() -> bool:
            return [pod["status"]["phase"] for pod in self.namespace.pods(self.NAME)] == ["Running"] * 4

        until(all_run, RECOVERY_TIMEOUT, "its pods to run", lambda: self.namespace.describe(self.NAME))

    def shares(self, node: str) -> None:
        """Have a pod on a node and another one elsewhere: the cluster promises neither where it spreads them."""
        there = [pod["spec"]["nodeName"] == node for pod in self.namespace.pods(self.NAME)]
        if any(there) and not all(there):
            return
        closed = [node] if all(there) else [name for name in reserved_nodes().names if name != node]
        kubectl("cordon", *closed)
        try:
            pod, *_ = self.namespace.pods(self.NAME)
            self.namespace.kubectl("delete", "pod", pod["metadata"]["name"])
            self.await_all()
        finally:
            kubectl("uncordon", *closed)

    def starts_again(self, node: str) -> None:
        """Let one of its pods fail that is not on the lost node, and start it again once the cluster has given that up which is there."""
        namespace, describe = self.namespace, lambda: self.namespace.describe(self.NAME)
        pods = namespace.pods(self.NAME)
        lost = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods if pod["spec"]["nodeName"] == node}
        well_one = next(pod for pod in pods if pod["spec"]["nodeName"] != node)
        assert lost, f"nothing of {self.NAME} is on {node}: {namespace.describe(self.NAME)}"

        def deleted() -> bool:
            return any(pod["metadata"].get("deletionTimestamp") for pod in namespace.pods(self.NAME) if pod["metadata"]["name"] in lost)

        until(deleted, 120, "the cluster to delete its pod", describe)
        namespace.signal(well_one["metadata"]["name"], "/tmp/fail")
        role = well_one["metadata"]["labels"]["app.kubernetes.io/component"]
        until(lambda: namespace.ends(self.NAME).get(role) == "Failed", 60, f"the {role} to fail", describe)
        self.launcher("up", str(self.spec), "--detach", "--resume", timeout=200)
        assert not {pod["metadata"]["uid"] for pod in namespace.pods(self.NAME)} & set(lost.values())
        self.await_all()


@pytest.fixture
def elsewhere(launcher: Launcher, image: str, tmp_path: Path) -> Iterator[Elsewhere]:
    """Start that run."""
    node_tool()
    run = Elsewhere(launcher, image, tmp_path)
    launcher("up", str(run.spec), "--detach")
    run.await_all()
    yield run
    launcher("down", run.NAME, "--now", "--delete-data", "--yes")


def test_a_node_of_workers_powered_off_is_told_of_and_its_tasks_go_on_and_a_run_that_fails_meanwhile_starts_again(
    runs: tuple[Run, Run], elsewhere: Elsewhere
) -> None:
    node = runs[0].node("worker-0")
    elsewhere.shares(node)
    go_on_without(node, runs, elsewhere.starts_again)


def test_a_node_of_a_chief_powered_off_is_told_of_and_its_tasks_go_on_and_a_run_stopped_meanwhile_says_what_it_could_not_save(
    runs: tuple[Run, Run], launcher: Launcher, image: str, tmp_path: Path
) -> None:
    node = runs[0].node("chief")
    spec = tmp_path / "spec.yaml"
    program = f"image: {image}\nsupervise: false\ncommand: [sleep, '3600']\nlimits: {{grace_period: 1s}}\n"
    there = f"overrides: {{all: {{spec: {{nodeName: {node}}}}}}}"
    spec.write_text(f"version: 1\nname: unsaved\n{program}{reserved_nodes().spec(f'tensorboard: false, {there}')}")
    launcher("up", str(spec), "--detach")
    until(lambda: launcher.namespace.runs("unsaved"), RECOVERY_TIMEOUT, "its pod to run", lambda: launcher.namespace.describe("unsaved"))

    def stopped(_node: str) -> None:
        told = launcher("down", "unsaved", timeout=300)
        assert f"unsaved: the node {node} does not answer: chief may not save" in told
        lost = f"with tasks whose nodes did not answer: chief on {node}"
        assert lost in told
        assert lost in launcher.status("unsaved")["reason"]

    go_on_without(node, runs, stopped)


def go_on_without(node: str, runs: tuple[Run, Run], meanwhile: Callable[[str], None]) -> None:
    """Power a node off, see that it is told of and that its tasks go on while somebody watches, and do something `meanwhile`."""
    served, _ = runs
    lost = {(run, task): run.pod(task) for run in runs for task in run.tasks if run.node(task) == node}
    print(f"on {node}: {', '.join(f'{task} of {run.name}' for run, task in lost)}")
    hit = tuple(run for run in runs if any(one is run for one, _ in lost))
    power = node_tool()
    watchers = {run: run.launcher.start("wait", run.name) for run in hit}
    try:
        with recovering(hit, f"{node} powered off", *{task: None for _, task in lost}):
            subprocess.run([power, "node", "off", node], check=True, timeout=60)
            untold = set(lost)

            def told() -> bool:
                seen = {run: run.launcher.namespace.status(run.name) for run in hit}
                reasons = {(run, task.name): task.reason for run, status in seen.items() if status for task in status.tasks}
                untold.difference_update([one for one in lost if reasons.get(one) == f"its node {node} does not answer"])
                return not untold

            until(told, 120, "the status to say so", lambda: [(task, run.launcher.namespace.status(run.name)) for run, task in untold])
            for (run, task), old in lost.items():
                until(lambda run=run, task=task, old=old: run.replaced(task, old), RECOVERY_TIMEOUT, f"another pod of {task}", run.describe)  # type: ignore[misc]
        meanwhile(node)
        for run, watcher in watchers.items():
            watcher.terminate()
            written = output_at_end(watcher, 20)
            for (of, task), old in lost.items():
                name = old["metadata"]["name"]
                assert of is not run or f"{task}: the node {node} is lost; its pod {name} was marked as failed, and is replaced" in written
            # The chief's TensorBoard is on its node, and would keep it there.
            tensorboard = f"tensorboard-0: the node {node} is lost; its pod {run.name}-tensorboard-"
            assert run is not served or (run, "chief") not in lost or tensorboard in written
    finally:
        for watcher in watchers.values():
            watcher.kill()
            watcher.communicate()
        power_on(node)
