"""A run survives the loss of trainers, of containers and of its supervisor, and `down` ends it: two clusters side by side.

The engine and the launcher are the subject here, so the tasks are those of tests/stand_in; test_faults_in_training.py has TensorFlow's.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.docker_cli import DockerError, docker
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import LEADERS, NOTHING, Run, launch, objects_of, paused, two_clusters
from tests.stand_in import stand_in

# The tests run one after the other, on the same two clusters.
pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("two clusters")]

SAVES_OFTEN = stand_in.spec(checkpoint={"every_seconds": 1})

# Prints whether a task answers at an address. A connection with another answer proves nothing: it may be that of a proxy on the way out
# of a machine.
PROBE = (
    "import socket, sys\n"
    "try:\n"
    "    with socket.create_connection((sys.argv[1], 2222), timeout=3) as connection:\n"
    "        connection.sendall(b'ask\\n')\n"
    "        print('answers' if connection.recv(5) == b'here\\n' else 'refused: another program answers')\n"
    "except OSError as error:\n    print('refused:', error)"
)
# Kills the trainer itself: process 1 only forwards signals.
KILL_THE_TRAINER = (
    "import os, pathlib, signal\n"
    "[os.kill(int(p.parent.name), signal.SIGKILL) for p in pathlib.Path('/proc').glob('[0-9]*/cmdline')\n"
    " if p.read_bytes().rstrip(b'\\0').endswith(b'-m\\0trainer')]"
)
# The trainers of a group are killed together.
TRAINERS = [[("servers", "worker-0"), ("servers", "evaluator"), ("peers", "worker-1")], [("servers", "chief")]]


def group_id(group: list[tuple[str, str]]) -> str:
    return "+".join(f"{kind}-{task}" for kind, task in group)


def await_container(run: Run, task: str, what: str, condition: Callable[[dict[str, Any]], bool]) -> None:
    run.until(f"{task}, whose container {what}", lambda: condition(run.inspect(task)), 60, lambda: run.inspect(task)["State"])


@pytest.fixture(scope="module")
def runs(image: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """Return two clusters that run at the same time on one engine."""
    del image
    with two_clusters(SAVES_OFTEN, tmp_path_factory.mktemp("two")) as clusters:
        yield clusters


def test_both_runs_are_listed_and_each_has_its_own_logs(runs: dict[str, Run]) -> None:
    listed = runs["servers"].launcher("ls")
    for kind, run in runs.items():
        assert run.name in listed
        status = run.status()
        assert (status["state"], status["backend"], status["run_dir"]) == ("running", "docker", f"volume {run.name}_run")
        assert f'"run":"{run.name}"' in str(run.inspect(LEADERS[kind])["Config"]["Env"])
        lines = run.launcher("logs", run.name, "--tail", "1").splitlines()
        assert {line.split()[0] for line in lines} <= set(run.tasks())


def test_only_tasks_of_its_run_reach_the_port_of_a_task(runs: dict[str, Run], image: Built) -> None:
    run = runs["servers"]
    networks = run.inspect("ps-0")["NetworkSettings"]["Networks"]
    assert list(networks) == [f"{run.name}_cluster"]
    address = networks[f"{run.name}_cluster"]["IPAddress"]
    inside = docker("exec", run.container("worker-0"), "python", "-c", PROBE, "ps-0")
    assert inside.strip() == "answers"
    # Not from another network, nor from the host, from which any program could connect.
    for network in ("bridge", "host", f"{run.name}_tensorboard", f"{runs['peers'].name}_cluster"):
        outside = docker("run", "--rm", "--network", network, "--entrypoint", "python", image.name, "-c", PROBE, address)
        assert outside.startswith("refused:"), network
    here = subprocess.run([sys.executable, "-c", PROBE, address], capture_output=True, text=True, timeout=30, check=True)
    assert here.stdout.startswith("refused:")
    assert run.inspect("chief")["HostConfig"]["PortBindings"] in ({}, None)


@pytest.mark.parametrize("group", TRAINERS, ids=group_id)
def test_killed_trainers_restart_with_their_containers(runs: dict[str, Run], group: list[tuple[str, str]]) -> None:
    before = {(kind, task): runs[kind].inspect(task) for kind, task in group}
    earlier = {(kind, task): len(runs[kind].tasks_status()[task]["restarts"]) for kind, task in group}
    for kind, task in group:
        with contextlib.suppress(DockerError):  # the program is killed with its container, at times before it has ended
            runs[kind].python(task, KILL_THE_TRAINER)
    for kind, task in group:
        run, count = runs[kind], before[kind, task]["RestartCount"]
        await_container(run, task, "is started again by the engine", lambda facts: facts["RestartCount"] > count)  # noqa: B023
        await_container(run, task, "runs", lambda facts: facts["State"]["Running"])
    for kind, task in group:
        runs[kind].await_progress(task, LEADERS[kind], leader=LEADERS[kind])
        restarts = runs[kind].tasks_status()[task]["restarts"][earlier[kind, task] :]
        assert 137 in [restart["exit_code"] for restart in restarts]  # a peer that is not back yet may cost one more


def test_killed_containers_are_started_again_by_the_launcher(runs: dict[str, Run]) -> None:
    group = [("servers", "ps-0"), ("peers", "worker-0")]
    before = {(kind, task): runs[kind].inspect(task)["State"]["StartedAt"] for kind, task in group}
    for kind, task in group:
        docker("kill", runs[kind].container(task))  # the engine takes this for a stop, and does not restart it
    for kind, task in group:
        run, started_at = runs[kind], before[kind, task]
        await_container(run, task, "runs again", lambda facts: facts["State"]["StartedAt"] != started_at)  # noqa: B023
    for kind, task in group:
        runs[kind].await_progress(task, LEADERS[kind], leader=LEADERS[kind])


def test_an_evaluator_continues_after_a_pause_and_a_cut_of_its_network(runs: dict[str, Run]) -> None:
    run = runs["servers"]
    network, container = f"{run.name}_cluster", run.container("evaluator")
    docker("network", "disconnect", network, container)
    with paused(container):
        run.until("the evaluator to be seen paused", lambda: "paused" in run.tasks_status()["evaluator"]["reason"], 60)
    docker("network", "connect", "--alias", "evaluator", network, container)
    run.await_progress("evaluator", "chief")


def test_down_leaves_nothing(runs: dict[str, Run]) -> None:
    run = runs["peers"]
    run.launcher("down", run.name)
    assert run.status()["state"] == "stopped"
    assert run.status()["checkpoint_step"]
    assert objects_of(run.name) == {"containers": [], "networks": [], "volumes": [f"{run.name}_run"]}
    refused = launch("down", run.name, "--delete-data", runs=run.runs)
    assert refused.returncode == 2  # it needs --yes
    run.launcher("down", run.name, "--delete-data", "--yes")
    assert objects_of(run.name) == NOTHING
    # The other run continues.
    runs["servers"].await_progress()


def test_without_its_supervisor_a_run_continues_and_can_be_stopped(runs: dict[str, Run], image: Built, tmp_path: Path) -> None:
    run = runs["servers"]
    supervisor = run.supervisor()
    supervisor.kill()
    run.until("the supervisor to end", lambda: not supervisor.is_running(), 20)
    status = run.status()
    assert status["state"] == "running"
    assert status["step"]
    assert status["run_dir"] == f"volume {run.name}_run"
    refused = launch("logs", run.name, "--role", "worker", "--index", "9", runs=run.runs)
    assert (refused.returncode, "worker-1" in refused.stderr) == (2, True)
    # A launcher with another runs directory sees the same by the engine, and may stop the run.
    other = Run(run.name, tmp_path / "elsewhere")
    assert other.status()["state"] == "running"
    assert any(line.startswith("chief") for line in other.launcher("logs", run.name, "--tail", "3").splitlines())
    run.await_progress()
    # The state that a supervisor leaves if the engine has not answered for long: it does not know that the run continues.
    file = run.runs / ".docker" / run.name / "launcher" / "state.json"
    state = json.loads(file.read_text())
    state["status"] |= {"state": "interrupted", "reason": "the engine has not answered for 600 s", "ended": time.time()}
    file.write_text(json.dumps(state))
    status = run.status()
    assert (status["state"], status["run_dir"]) == ("running", f"volume {run.name}_run")
    again = launch("up", str(run.runs.parent / f"{run.name}.yaml"), runs=run.runs)
    assert again.returncode == 2
    assert "runs already" in again.stderr
    # It is stopped as if it were supervised: with a last checkpoint.
    reached = run.step()
    run.launcher("down", run.name)
    status = run.status()
    assert (status["state"], status["reason"]) == ("stopped", "asked to stop")
    assert status["checkpoint_step"] >= reached
    assert objects_of(run.name)["containers"] == []
    summary = docker("run", "--rm", "--volume", f"{run.name}_run:/runs:ro", "--entrypoint", "cat", image.name, f"/runs/{run.name}/run.json")
    assert json.loads(summary)["state"] == "stopped"
    # With another runs directory its spec is not known, so it is not resumed without a flag.
    elsewhere = launch("up", str(run.runs.parent / f"{run.name}.yaml"), runs=tmp_path / "elsewhere")
    assert elsewhere.returncode == 2
    assert "from an unknown spec" in elsewhere.stderr
