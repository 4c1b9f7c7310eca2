"""Two runs whose nodes accept no pods, are cut off, and are lost: each resumes from its last checkpoint.

One is of parameter servers, with an evaluator, on a volume of one node, and computes nothing; the other is an all-reduce on a shared
volume, and trains: TensorFlow has to notice a peer that only falls silent.
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

pytestmark = [pytest.mark.kubernetes, pytest.mark.changes_nodes, pytest.mark.takes_minutes]  # its turn has to come first

# TensorBoard shares a volume of one node with the chief, and must not keep the chief on a lost node.
SERVED = """\
strategy: parameter_server
roles: {chief: {}, ps: {replicas: 1}, worker: {replicas: 2}, evaluator: {}}
storage: {access: ReadWriteOnce}
"""
ALL_REDUCE = """\
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
def all_reduce(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Start the all-reduce, once for the tests below."""
    run = Run(launcher, "all-reduce", ("chief", "worker-0"))
    run.start(
        ALL_REDUCE + reserved_nodes().spec("tensorboard: false") + paced(every_seconds=3), tmp_path_factory.mktemp("specs") / run.name
    )
    yield run
    launcher("down", run.name, "--now", "--delete-data", "--yes")


@pytest.fixture
def runs(served: Run, all_reduce: Run) -> tuple[Run, Run]:
    """Return both, at rest and with a checkpoint."""
    for run in (served, all_reduce):
        run.await_steady()
    return served, all_reduce


def test_an_evicted_chief_without_a_node_is_reported_and_resumes_from_its_checkpoint(runs: tuple[Run, Run]) -> None:
    served, _ = runs
    namespace = served.launcher.namespace
    until(lambda: namespace.is_running(served.name), 60, "it to run", lambda: namespace.status(served.name))
    node_tool()  # skips unless the nodes are a testbed's
    with recovering((served,), "chief evicted, and no node for it", "chief"):
        kubectl("cordon", *reserved_nodes().names)
        try:
            served.evict("chief")

            def is_reported() -> bool:  # though the others run
                status = served.status()
                return (status["state"], "unschedulable" in status["reason"]) == ("pending", True)

            until(is_reported, 90, "the status to say so", served.status)
        finally:
            kubectl("uncordon", *reserved_nodes().names)
    restored = [event["step"] for event in served.events("chief") if event["event"] == "restored"]
    assert restored
    assert restored[-1] > 0
    until(lambda: namespace.is_running(served.name), 60, "it to run", lambda: namespace.status(served.name))
    chief, *_ = served.status()["tasks"]  # as seen by a launcher that was not watching
    assert "its pod was deleted, or its node drained" in [restart["cause"] for restart in chief["restarts"]]


def test_runs_wait_for_a_node_that_is_cut_off_for_a_while(runs: tuple[Run, Run]) -> None:
    served, _ = runs
    chief_node = served.node("chief")
    node = next((served.node(task) for task in ("worker-0", "worker-1") if served.node(task) != chief_node), chief_node)
    with recovering(runs, f"{node} cut off", "worker-0"):
        subprocess.run([node_tool(), "node", "cut", node], check=True, timeout=60)
        try:
            until(lambda: not is_usable(node), 60, f"the cluster to notice that {node} is silent", served.describe)
        finally:
            subprocess.run([node_tool(), "node", "heal", node], check=True, timeout=60)
        # The cluster may move the node's pods all the same, if it takes long to see the node again.
        until(lambda: is_usable(node) and all(run.is_steady() for run in runs), 120, "the cluster to be steady", served.describe)


class FailingRun:
    """A run that fails while one of its pods is on a lost node, and starts again on the other nodes."""

    NAME = "failing"
    PROGRAM = "import os, sys, time\nwhile not os.path.exists('/tmp/fail'):\n    time.sleep(0.2)\nsys.exit(2)"

    def __init__(self, launcher: Launcher, image: str, directory: Path) -> None:
        self.launcher, self.namespace, self.spec = launcher, launcher.namespace, directory / "spec.yaml"
        roles = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {replicas: 2}}\n"
        command = f"image: {image}\nsupervise: false\ncommand: [python, -c, {json.dumps(self.PROGRAM)}]\n"
        # A start waits for a pod on a lost node during the grace period and a minute more.
        options = "limits: {grace_period: 1s}\n" + reserved_nodes().spec("placement: spread, tensorboard: false")
        self.spec.write_text(f"version: 1\nname: {self.NAME}\n{roles}{command}{options}")

    def await_all(self) -> None:
        """Wait until all its pods run."""

        def all_run() -> bool:
            return [pod["status"]["phase"] for pod in self.namespace.pods(self.NAME)] == ["Running"] * 4

        until(all_run, RECOVERY_TIMEOUT, "its pods to run", lambda: self.namespace.describe(self.NAME))

    def spread_around(self, node: str) -> None:
        """Move pods so that at least one is on a node and one is not: the scheduler promises neither."""
        on_node = [pod["spec"]["nodeName"] == node for pod in self.namespace.pods(self.NAME)]
        if any(on_node) and not all(on_node):
            return
        cordoned = [node] if all(on_node) else [name for name in reserved_nodes().names if name != node]
        kubectl("cordon", *cordoned)
        try:
            pod, *_ = self.namespace.pods(self.NAME)
            self.namespace.kubectl("delete", "pod", pod["metadata"]["name"])
            self.await_all()
        finally:
            kubectl("uncordon", *cordoned)

    def fail_and_restart(self, node: str) -> None:
        """Let a pod fail that is not on the lost node, once the cluster is deleting the one on it, and start the run again."""
        namespace, describe = self.namespace, lambda: self.namespace.describe(self.NAME)
        pods = namespace.pods(self.NAME)
        lost = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods if pod["spec"]["nodeName"] == node}
        other = next(pod for pod in pods if pod["spec"]["nodeName"] != node)
        assert lost, f"nothing of {self.NAME} is on {node}: {namespace.describe(self.NAME)}"

        def deleted() -> bool:
            return any(pod["metadata"].get("deletionTimestamp") for pod in namespace.pods(self.NAME) if pod["metadata"]["name"] in lost)

        until(deleted, 120, "the cluster to delete its pod", describe)
        namespace.signal(other["metadata"]["name"], "/tmp/fail")
        role = other["metadata"]["labels"]["app.kubernetes.io/component"]
        until(lambda: namespace.ends(self.NAME).get(role) == "Failed", 60, f"the {role} to fail", describe)
        self.launcher("up", str(self.spec), "--detach", "--resume", timeout=200)
        assert not {pod["metadata"]["uid"] for pod in namespace.pods(self.NAME)} & set(lost.values())
        self.await_all()


@pytest.fixture
def failing(launcher: Launcher, image: str, tmp_path: Path) -> Iterator[FailingRun]:
    """Start the run that is to fail."""
    node_tool()
    run = FailingRun(launcher, image, tmp_path)
    launcher("up", str(run.spec), "--detach")
    run.await_all()
    yield run
    launcher("down", run.NAME, "--now", "--delete-data", "--yes")


def test_the_loss_of_a_workers_node_is_reported_its_tasks_continue_and_a_run_that_fails_meanwhile_starts_again(
    runs: tuple[Run, Run], failing: FailingRun
) -> None:
    node = runs[0].node("worker-0")
    failing.spread_around(node)
    power_off_and_recover(node, runs, failing.fail_and_restart)


def test_the_loss_of_a_chiefs_node_is_reported_its_tasks_continue_and_a_run_stopped_meanwhile_reports_an_unsaved_task(
    runs: tuple[Run, Run], launcher: Launcher, image: str, tmp_path: Path
) -> None:
    node = runs[0].node("chief")
    spec = tmp_path / "spec.yaml"
    program = f"image: {image}\nsupervise: false\ncommand: [sleep, '3600']\nlimits: {{grace_period: 1s}}\n"
    on_node = f"overrides: {{all: {{spec: {{nodeName: {node}}}}}}}"
    spec.write_text(f"version: 1\nname: unsaved\n{program}{reserved_nodes().spec(f'tensorboard: false, {on_node}')}")
    launcher("up", str(spec), "--detach")
    until(
        lambda: launcher.namespace.is_running("unsaved"), RECOVERY_TIMEOUT, "its pod to run", lambda: launcher.namespace.describe("unsaved")
    )

    def stop(_node: str) -> None:
        output = launcher("down", "unsaved", timeout=300)
        assert f"unsaved: the node {node} does not answer: chief may not save" in output
        lost = f"with tasks whose nodes did not answer: chief on {node}"
        assert lost in output
        assert lost in launcher.status("unsaved")["reason"]

    power_off_and_recover(node, runs, stop)


def power_off_and_recover(node: str, runs: tuple[Run, Run], meanwhile: Callable[[str], None]) -> None:
    """Power a node off, check that a watching launcher reports and replaces its tasks, and call `meanwhile` before the node is powered on."""
    served, _ = runs
    lost = {(run, task): run.pod(task) for run in runs for task in run.tasks if run.node(task) == node}
    print(f"on {node}: {', '.join(f'{task} of {run.name}' for run, task in lost)}")
    affected = tuple(run for run in runs if any(owner is run for owner, _ in lost))
    power = node_tool()
    watchers = {run: run.launcher.start("wait", run.name) for run in affected}
    try:
        with recovering(affected, f"{node} powered off", *{task: None for _, task in lost}):
            subprocess.run([power, "node", "off", node], check=True, timeout=60)
            unreported = set(lost)

            def is_reported() -> bool:
                statuses = {run: run.launcher.namespace.status(run.name) for run in affected}
                reasons = {(run, task.name): task.reason for run, status in statuses.items() if status for task in status.tasks}
                unreported.difference_update([key for key in lost if reasons.get(key) == f"its node {node} does not answer"])
                return not unreported

            until(
                is_reported,
                120,
                "the status to say so",
                lambda: [(task, run.launcher.namespace.status(run.name)) for run, task in unreported],
            )
            for (run, task), old in lost.items():
                run.await_replacement(task, old)
        meanwhile(node)
        for run, watcher in watchers.items():
            watcher.terminate()
            output = output_at_end(watcher, 20)
            for (owner, task), old in lost.items():
                name = old["metadata"]["name"]
                assert (
                    owner is not run or f"{task}: the node {node} is lost; its pod {name} was marked as failed, and is replaced" in output
                )
            # The chief's TensorBoard is on its node, and would keep the new chief on it.
            tensorboard = f"tensorboard-0: the node {node} is lost; its pod {run.name}-tensorboard-"
            assert run is not served or (run, "chief") not in lost or tensorboard in output
    finally:
        for watcher in watchers.values():
            watcher.kill()
            watcher.communicate()
        power_on(node)
