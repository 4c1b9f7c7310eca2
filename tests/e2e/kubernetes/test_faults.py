"""Two runs that go through the same faults and go on, each from where it was: processes killed, pods deleted and evicted, nodes lost.

One is of parameter servers, with an evaluator, on a volume of one node; the other's workers are alike, and share a volume.
"""

import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.e2e.kubernetes.cluster import kubectl, until
from tests.e2e.kubernetes.faults import ALIVE, Run, going_on
from tests.e2e.kubernetes.launching import Launcher
from tests.e2e.kubernetes.nodes import changeable, node_tool, power_on, well

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
    run.start(SERVED + changeable().spec("placement: spread"), tmp_path_factory.mktemp("specs") / run.name)
    yield run
    launcher("down", run.name, "--now", "--delete-data", "--yes")


@pytest.fixture(scope="module")
def alike(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Start the run whose workers are alike, once for the tests below."""
    run = Run(launcher, "alike", ("chief", "worker-0"))
    run.start(ALIKE + changeable().spec("tensorboard: false"), tmp_path_factory.mktemp("specs") / run.name)
    yield run
    launcher("down", run.name, "--now", "--delete-data", "--yes")


@pytest.fixture
def runs(served: Run, alike: Run) -> tuple[Run, Run]:
    """Return both, at rest and with a checkpoint."""
    for run in (served, alike):
        until(lambda run=run: run.at_rest() and run.saved() > 0, ALIVE, f"{run.name} to train", run.describe)  # type: ignore[misc]
    return served, alike


@pytest.mark.parametrize("task", ["worker-0", "ps-0", "chief", "evaluator"])
def test_a_process_killed_comes_back_in_its_pod(task: str, runs: tuple[Run, Run]) -> None:
    hit = tuple(run for run in runs if task in run.tasks)
    before = [run.pod(task)["metadata"]["uid"] for run in hit]
    with going_on(hit, "process killed", task):
        for run in hit:
            run.kill(task)
    assert [run.pod(task)["metadata"]["uid"] for run in hit] == before


def test_pods_deleted_and_evicted_are_replaced(runs: tuple[Run, Run]) -> None:
    served, alike = runs
    before = {(run, task): run.pod(task) for run, task in ((served, "ps-0"), (served, "evaluator"), (served, "worker-0"), (alike, "chief"))}
    with going_on(runs, "pods deleted and evicted", "ps-0", "evaluator", "worker-0", "chief"):
        served.delete("ps-0")
        served.delete("evaluator")
        served.evict("worker-0")
        alike.delete("chief")
        for (run, task), old in before.items():
            until(lambda run=run, task=task, old=old: run.replaced(task, old), 120, f"another pod of {task}", run.describe)  # type: ignore[misc]


def test_a_chief_evicted_waits_for_a_node_is_told_of_and_goes_on_from_its_checkpoint(runs: tuple[Run, Run]) -> None:
    served, _ = runs
    until(lambda: served.status()["state"] == "running", 60, "it to run")
    node_tool()  # it changes nodes: not of any cluster
    with going_on((served,), "chief evicted, and no node for it", "chief"):
        kubectl("cordon", *changeable().names)
        try:
            served.evict("chief")

            def told() -> bool:  # though the others run
                status = served.status()
                return (status["state"], "unschedulable" in status["reason"]) == ("pending", True)

            until(told, 90, "the status to say so", lambda: str(served.status()))
        finally:
            kubectl("uncordon", *changeable().names)
    restored = [event["step"] for event in served.events("chief") if event["event"] == "restored"]
    assert restored
    assert restored[-1] > 0
    until(lambda: served.status()["state"] == "running", 60, "it to run", lambda: str(served.status()))
    chief, *_ = served.status()["tasks"]  # of a launcher that did not see it happen
    assert "its pod was deleted" in [restart["cause"] for restart in chief["restarts"]]


def test_a_node_cut_off_for_20_seconds_is_waited_for(runs: tuple[Run, Run]) -> None:
    served, _ = runs
    chiefs = served.node("chief")
    node = next((served.node(task) for task in ("worker-0", "worker-1") if served.node(task) != chiefs), chiefs)
    with going_on(runs, f"{node} cut off for 20 s", "worker-0"):
        subprocess.run([node_tool(), "node", "cut", node], check=True, timeout=60)
        try:
            time.sleep(20)
        finally:
            subprocess.run([node_tool(), "node", "heal", node], check=True, timeout=60)
        # Whether the cluster moves its pods meanwhile is a matter of how long it waits; here it nearly does, and sometimes does.
        until(lambda: well(node) and all(run.at_rest() for run in runs), 120, "the cluster to be at rest", served.describe)


@pytest.mark.parametrize("which", ["worker-0", "chief"])
def test_a_node_powered_off_is_told_of_and_its_tasks_go_on_while_somebody_watches(which: str, runs: tuple[Run, Run]) -> None:
    served, _ = runs
    node = served.node(which)
    lost = {(run, task): run.pod(task) for run in runs for task in run.tasks if run.node(task) == node}
    print(f"on {node}: {', '.join(f'{task} of {run.name}' for run, task in lost)}")
    hit = tuple(run for run in runs if any(one is run for one, _ in lost))
    power = node_tool()
    watchers = {run: run.launcher.start("wait", run.name) for run in hit}
    try:
        with going_on(hit, f"{node} powered off", *{task: None for _, task in lost}):
            subprocess.run([power, "node", "off", node], check=True, timeout=60)

            untold = set(lost)

            def told() -> bool:
                reasons = {(run, one["name"]): str(one["reason"]) for run in hit for one in run.status()["tasks"]}
                untold.difference_update([one for one in lost if reasons[one] == f"its node {node} does not answer"])
                return not untold

            until(told, 120, "the status to say so", lambda: "\n".join(f"not of {task}: {run.status()}" for run, task in untold))
            for (run, task), old in lost.items():
                until(lambda run=run, task=task, old=old: run.replaced(task, old), 120, f"another pod of {task}", run.describe)  # type: ignore[misc]
        for run, watcher in watchers.items():
            watcher.terminate()
            written, _ = watcher.communicate(timeout=20)
            for (of, task), old in lost.items():
                name = old["metadata"]["name"]
                assert of is not run or f"{task}: the node {node} is lost; its pod {name} was given up, and is replaced" in written
            # The chief's board is on its node, and would keep it there.
            board = f"tensorboard-0: the node {node} is lost; its pod {run.name}-tensorboard-"
            assert run is not served or (run, "chief") not in lost or board in written
    finally:
        for watcher in watchers.values():
            watcher.kill()
            watcher.communicate()
        power_on(node)
