"""TensorFlow's tasks continue after a pause, and after a cut of their network: each role of two clusters that train side by side."""

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.docker_cli import DockerError, docker
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import LEADERS, ROOT, Run, paused, two_clusters

# The tests run one after the other, on the same two clusters.
pytestmark = [pytest.mark.docker, pytest.mark.trains, pytest.mark.xdist_group("two clusters that train")]

# Trains slowly for as long as it is needed, and saves often.
PACED: dict[str, Any] = {
    "code": str(ROOT / "tests" / "e2e" / "code"),
    "train": {"workload": "paced:Paced", "steps": 1_000_000, "steps_per_execution": 10, "checkpoint": {"every_seconds": 3}},
}

# The tasks of a group are paused or cut off together. They cover every role, and one of two workers.
Group = list[tuple[str, str]]
PAUSED: list[Group] = [
    [("servers", "worker-1"), ("peers", "worker-1")],
    [("servers", "ps-0"), ("servers", "worker-0"), ("peers", "worker-0")],
    [("servers", "chief")],
]
CUT_OFF: list[Group] = [
    [("servers", "worker-1"), ("peers", "worker-1")],
    [("servers", "ps-0"), ("peers", "worker-0")],
    [("servers", "chief")],
]


def group_id(group: Group) -> str:
    return "+".join(f"{kind}-{task}" for kind, task in group)


@pytest.fixture(scope="module")
def runs(image: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """Return two clusters that train at the same time on one engine."""
    del image
    with two_clusters(PACED, tmp_path_factory.mktemp("two")) as clusters:
        yield clusters


def test_an_evaluator_measures_the_chief_s_checkpoints(runs: dict[str, Run]) -> None:
    run = runs["servers"]
    evaluated = run.until("the evaluator to measure a checkpoint", lambda: run.events("evaluator", "evaluated"), 240)
    assert evaluated[0]["step"] > 0


@pytest.mark.parametrize("group", PAUSED, ids=group_id)
def test_training_continues_after_a_pause_of_twenty_seconds(runs: dict[str, Run], group: Group) -> None:
    with paused(*(runs[kind].container(task) for kind, task in group)):
        started_at = time.monotonic()
        for kind, task in group:
            run = runs[kind]
            run.until(f"{task} to be seen paused", lambda: "paused" in run.tasks_status()[task]["reason"], 60)  # noqa: B023
        time.sleep(max(0.0, started_at + 20 - time.monotonic()))  # the fault itself takes that long
    for kind, task in group:
        runs[kind].await_progress(task, LEADERS[kind], leader=LEADERS[kind])


@pytest.mark.parametrize("group", CUT_OFF, ids=group_id)
def test_a_task_that_was_cut_off_from_the_network_trains_again(runs: dict[str, Run], group: Group) -> None:
    for kind, task in group:
        docker("network", "disconnect", f"{runs[kind].name}_cluster", runs[kind].container(task))
    time.sleep(10)  # the fault itself
    for kind, task in group:
        network, container = f"{runs[kind].name}_cluster", runs[kind].container(task)
        with contextlib.suppress(DockerError):  # a container that was restarted meanwhile is connected
            docker("network", "connect", "--alias", task, network, container)
    for kind, task in group:
        runs[kind].await_progress(task, LEADERS[kind], leader=LEADERS[kind])


def test_down_saves_the_progress_of_both_clusters(runs: dict[str, Run], image: Built) -> None:
    for kind, run in runs.items():
        reached = run.step(LEADERS[kind])
        run.launcher("down", run.name)
        status = run.status()
        assert status["state"] == "stopped"
        assert status["checkpoint_step"] >= reached
        volume = f"{run.name}_run:/runs:ro"
        summary = docker("run", "--rm", "--volume", volume, "--entrypoint", "cat", image.name, f"/runs/{run.name}/run.json")
        assert json.loads(summary)["state"] == "stopped"
