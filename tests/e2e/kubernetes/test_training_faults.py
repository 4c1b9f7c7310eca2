"""Runs of TensorFlow suffer faults on a cluster: a peer is killed, or is replaced by one at another address."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import paced
from tests.e2e.kubernetes.faults import ALL_REDUCE, Run, recovering
from tests.e2e.kubernetes.launching import Launcher

pytestmark = [pytest.mark.kubernetes, pytest.mark.trains, pytest.mark.takes_minutes]

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


def test_tensorflows_all_reduce_continues_with_a_worker_at_another_address(launcher: Launcher, tmp_path: Path) -> None:
    run = Run(launcher, "all-reduce", ("chief", "worker-0"))
    run.start(ALL_REDUCE + paced(every_seconds=2), tmp_path / run.name)
    run.await_steady()
    before = run.pod("worker-0")
    with recovering((run,), "pod deleted", "worker-0"):
        run.delete("worker-0")
        run.await_replacement("worker-0", before)
    assert run.pod("worker-0")["status"]["podIP"] != before["status"]["podIP"]
    launcher("down", run.name, "--now", "--delete-data", "--yes")


@pytest.mark.parametrize("task", ["worker-0", "ps-0", "chief"])
def test_training_continues_after_a_process_was_killed(task: str, trains: Run) -> None:
    before = trains.pod(task)["metadata"]["uid"]
    with recovering((trains,), "process killed", task):
        trains.kill(task)
    assert trains.pod(task)["metadata"]["uid"] == before


def test_a_drained_ps_costs_no_step(trains: Run) -> None:
    before, began = trains.pod("ps-0"), time.time()
    with recovering((trains,), "pod evicted", "ps-0"):
        trains.evict("ps-0")
        trains.await_replacement("ps-0", before)
    events = trains.events("chief")
    restored = next(e for e in events if e["event"] == "restored" and e["time"] > began)
    assert max(e["step"] for e in events if e["event"] == "progress" and e["time"] < restored["time"]) <= restored["step"]
    # It had learned of the request, and lost no peer.
    assert [e["exit_code"] for e in events if e["event"] == "restarting" and e["time"] > began] == [143]


def test_training_continues_with_a_ps_and_a_worker_at_other_addresses(trains: Run) -> None:
    before = {task: trains.pod(task) for task in ("ps-0", "worker-0")}
    with recovering((trains,), "pods deleted and evicted", *before):
        trains.delete("ps-0")
        trains.evict("worker-0")
        for task, old in before.items():
            trains.await_replacement(task, old)
    assert all(trains.pod(task)["status"]["podIP"] != old["status"]["podIP"] for task, old in before.items())
    assert set(trains.launcher.namespace.ends(trains.name).values()) == {""}
