"""Runs of TensorFlow go through faults on a cluster: what TensorFlow does when a peer is killed, or is another one at another address."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import paced, until
from tests.e2e.kubernetes.faults import ALL_REDUCE, RECOVERY_TIMEOUT, Run, recovering
from tests.e2e.kubernetes.launching import Launcher

pytestmark = [pytest.mark.kubernetes, pytest.mark.trains, pytest.mark.timeout(1440), pytest.mark.takes_minutes]

SERVED = """\
strategy: parameter_server
roles: {chief: {}, ps: {replicas: 1}, worker: {replicas: 2}}
kubernetes: {tensorboard: false}
"""


@pytest.fixture(scope="module")
def trains(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Start a run of parameter servers, once for the tests below."""
    run = Run(launcher, "trains", ("chief", "worker-0", "worker-1", "ps-0"))
    run.start(SERVED + paced(every_seconds=2), tmp_path_factory.mktemp("specs") / run.name)
    run.await_steady()
    yield run
    launcher("down", run.name, "--now", "--delete-data", "--yes")


def test_tensorflow_s_all_reduce_goes_on_with_a_worker_at_another_address(launcher: Launcher, tmp_path: Path) -> None:
    run = Run(launcher, "alike", ("chief", "worker-0"))
    run.start(ALL_REDUCE + paced(every_seconds=2), tmp_path / run.name)
    run.await_steady()
    before = run.pod("worker-0")
    with recovering((run,), "pod deleted", "worker-0"):
        run.delete("worker-0")
        until(lambda: run.replaced("worker-0", before), RECOVERY_TIMEOUT, "another pod of worker-0", run.describe)
    assert run.pod("worker-0")["status"]["podIP"] != before["status"]["podIP"]
    launcher("down", run.name, "--now", "--delete-data", "--yes")


@pytest.mark.parametrize("task", ["worker-0", "ps-0", "chief"])
def test_tensorflow_goes_on_when_a_process_was_killed(task: str, trains: Run) -> None:
    before = trains.pod(task)["metadata"]["uid"]
    with recovering((trains,), "process killed", task):
        trains.kill(task)
    assert trains.pod(task)["metadata"]["uid"] == before


def test_a_ps_that_is_drained_costs_no_step(trains: Run) -> None:
    before, began = trains.pod("ps-0"), time.time()
    with recovering((trains,), "pod evicted", "ps-0"):
        trains.evict("ps-0")
        until(lambda: trains.replaced("ps-0", before), RECOVERY_TIMEOUT, "another pod of ps-0", trains.describe)
    told = trains.events("chief")
    restored = next(e for e in told if e["event"] == "restored" and e["time"] > began)
    assert max(e["step"] for e in told if e["event"] == "progress" and e["time"] < restored["time"]) <= restored["step"]
    # It had heard of the request, and lost nobody.
    assert [e["exit_code"] for e in told if e["event"] == "restarting" and e["time"] > began] == [143]


def test_tensorflow_goes_on_with_a_ps_and_a_worker_at_other_addresses(trains: Run) -> None:
    before = {task: trains.pod(task) for task in ("ps-0", "worker-0")}
    with recovering((trains,), "pods deleted and evicted", *before):
        trains.delete("ps-0")
        trains.evict("worker-0")
        for task, old in before.items():
            until(lambda task=task, old=old: trains.replaced(task, old), RECOVERY_TIMEOUT, f"another pod of {task}", trains.describe)  # type: ignore[misc]
    assert all(trains.pod(task)["status"]["podIP"] != old["status"]["podIP"] for task, old in before.items())
    assert set(trains.launcher.namespace.ends(trains.name).values()) == {""}
