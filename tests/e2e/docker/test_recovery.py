"""What happens to containers, done to two clusters that run side by side: each role is killed, paused and cut off."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.docker_cli import DockerError, docker
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import NOTHING, PACED, PROBE, Run, launch, left, started

# One after the other, on the same two clusters.
pytestmark = [pytest.mark.docker, pytest.mark.timeout(600), pytest.mark.xdist_group("two clusters")]

SERVERS: dict[str, Any] = {
    "name": "servers",
    "strategy": "parameter_server",
    "roles": {"chief": {}, "ps": {"replicas": 1}, "worker": {"replicas": 2}, "evaluator": {}},
    **PACED,
}
PEERS: dict[str, Any] = {"name": "peers", "strategy": "multi_worker_mirrored", "roles": {"worker": {"replicas": 2}}, **PACED}
LEADERS = {"servers": "chief", "peers": "worker-0"}

# The trainer itself: what is pid 1 only forwards its signals.
KILL_THE_TRAINER = (
    "import os, pathlib, signal\n"
    "[os.kill(int(p.parent.name), signal.SIGKILL) for p in pathlib.Path('/proc').glob('[0-9]*/cmdline')\n"
    " if p.read_bytes().rstrip(b'\\0').endswith(b'-m\\0trainer')]"
)
# Every role once, those of one group at the same time.
GROUPS = [
    [("servers", "worker-1"), ("servers", "evaluator"), ("peers", "worker-1")],
    [("servers", "ps-0")],
    [("servers", "chief"), ("peers", "worker-0")],
]


@pytest.fixture(scope="module")
def runs(image: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """Return two clusters that train at the same time on one engine."""
    del image
    with contextlib.ExitStack() as both:
        directory = tmp_path_factory.mktemp("two")
        found = {str(spec["name"]): both.enter_context(started(spec, directory)) for spec in (SERVERS, PEERS)}
        for name, run in found.items():
            run.until(f"{name} to train", lambda run=run, name=name: run.step(LEADERS[name]) > 20, 300)  # type: ignore[misc]
        yield found


def test_both_are_listed_and_each_has_its_own_logs(runs: dict[str, Run]) -> None:
    listed = runs["servers"].launcher("ls")
    for kind, run in runs.items():
        assert run.name in listed
        status = run.status()
        assert (status["state"], status["backend"], status["run_dir"]) == ("running", "docker", f"volume {run.name}_run")
        assert f'"run":"{run.name}"' in str(run.inspect(LEADERS[kind])["Config"]["Env"])
        lines = run.launcher("logs", run.name, "--tail", "1").splitlines()
        assert {line.split()[0] for line in lines} <= set(run.tasks())


def test_nobody_else_reaches_tensorflow_s_port(runs: dict[str, Run], image: Built) -> None:
    run = runs["servers"]
    networks = run.inspect("ps-0")["NetworkSettings"]["Networks"]
    assert list(networks) == [f"{run.name}_cluster"]
    address = networks[f"{run.name}_cluster"]["IPAddress"]
    inside = docker("exec", run.container("worker-0"), "python", "-c", PROBE, "ps-0")
    assert inside.strip() == "answers"
    # Not from another network, and not from the host, whose address on the network would let all its programs in.
    for network in ("bridge", "host", f"{run.name}_tensorboard", f"{runs['peers'].name}_cluster"):
        outside = docker("run", "--rm", "--network", network, "--entrypoint", "python", image.name, "-c", PROBE, address)
        assert outside.startswith("refused:"), network
    here = subprocess.run([sys.executable, "-c", PROBE, address], capture_output=True, text=True, timeout=30, check=True)
    assert here.stdout.startswith("refused:")
    assert run.inspect("chief")["HostConfig"]["PortBindings"] in ({}, None)


@pytest.mark.parametrize("kind, task", [("servers", "worker-0"), ("servers", "evaluator"), ("servers", "chief"), ("peers", "worker-1")])
def test_a_trainer_that_is_killed_comes_back_with_its_container(runs: dict[str, Run], kind: str, task: str) -> None:
    run = runs[kind]
    before = run.inspect(task)
    with contextlib.suppress(DockerError):  # the program is killed with its container, at times before it has ended
        run.python(task, KILL_THE_TRAINER)
    run.until(f"the engine to start {task} again", lambda: run.inspect(task)["RestartCount"] > before["RestartCount"], 60)
    run.until(f"{task} to run", lambda: run.inspect(task)["State"]["Running"], 60)
    run.goes_on(task, LEADERS[kind], leader=LEADERS[kind])
    assert [restart["exit_code"] for restart in run.tasks_status()[task]["restarts"]][-1:] == [137]


@pytest.mark.parametrize("kind, task", [("servers", "ps-0"), ("peers", "worker-0")])
def test_a_container_that_is_killed_outright_is_started_again_by_the_launcher(runs: dict[str, Run], kind: str, task: str) -> None:
    run = runs[kind]
    before = run.inspect(task)["State"]["StartedAt"]
    docker("kill", run.container(task))  # to the engine that is a wish to stop it: it does not start it again
    run.until(f"{task} to run again", lambda: run.inspect(task)["State"]["StartedAt"] != before, 60)
    run.goes_on(task, LEADERS[kind], leader=LEADERS[kind])


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: "+".join(task for _, task in group))
def test_a_pause_of_twenty_seconds_is_waited_out(runs: dict[str, Run], group: list[tuple[str, str]]) -> None:
    for kind, task in group:
        docker("pause", runs[kind].container(task))
    try:
        until = time.monotonic() + 20
        for kind, task in group:
            runs[kind].until(f"{task} to be seen paused", lambda: "paused" in runs[kind].tasks_status()[task]["reason"], 15)  # noqa: B023
        time.sleep(until - time.monotonic())
    finally:
        for kind, task in group:
            docker("unpause", runs[kind].container(task))
    for kind, task in group:
        runs[kind].goes_on(task, LEADERS[kind], leader=LEADERS[kind])


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: "+".join(task for _, task in group))
def test_a_task_that_was_cut_off_from_the_network_takes_part_again(runs: dict[str, Run], group: list[tuple[str, str]]) -> None:
    for kind, task in group:
        docker("network", "disconnect", f"{runs[kind].name}_cluster", runs[kind].container(task))
    time.sleep(10)
    for kind, task in group:
        network, container = f"{runs[kind].name}_cluster", runs[kind].container(task)
        with contextlib.suppress(DockerError):  # a container that was started again meanwhile is connected
            docker("network", "connect", "--alias", task, network, container)
    for kind, task in group:
        runs[kind].goes_on(task, LEADERS[kind], leader=LEADERS[kind])


def test_down_leaves_nothing(runs: dict[str, Run]) -> None:
    run = runs["peers"]
    run.launcher("down", run.name)
    assert run.status()["state"] == "stopped"
    assert run.status()["checkpoint_step"]
    assert left(run.name) == {"containers": [], "networks": [], "volumes": [f"{run.name}_run"]}
    refused = launch("down", run.name, "--delete-data", runs=run.runs)
    assert refused.returncode == 2  # not without a yes
    run.launcher("down", run.name, "--delete-data", "--yes")
    assert left(run.name) == NOTHING
    # The other one goes on.
    runs["servers"].goes_on()


def test_without_its_keeper_a_run_goes_on_and_can_be_stopped(runs: dict[str, Run], image: Built, tmp_path: Path) -> None:
    run = runs["servers"]
    keeper = run.keeper()
    keeper.kill()
    run.until("the keeper to be gone", lambda: not keeper.is_running(), 20)
    status = run.status()
    assert status["state"] == "running"
    assert status["step"]
    assert status["run_dir"] == f"volume {run.name}_run"
    refused = launch("logs", run.name, "--role", "worker", "--index", "9", runs=run.runs)
    assert (refused.returncode, "worker-1" in refused.stderr) == (2, True)
    # Somebody else, who has the engine alone, sees the same and may stop it.
    other = Run(run.name, tmp_path / "elsewhere")
    assert other.status()["state"] == "running"
    assert any(line.startswith("chief") for line in other.launcher("logs", run.name, "--tail", "3").splitlines())
    run.goes_on()
    # As a keeper leaves it that the engine did not answer for long: it does not know that the run goes on.
    file = run.runs / run.name / "launcher" / "state.json"
    told = json.loads(file.read_text())
    told["status"] |= {"state": "interrupted", "reason": "the engine has not answered for 600 s", "ended": time.time()}
    file.write_text(json.dumps(told))
    status = run.status()
    assert (status["state"], status["run_dir"]) == ("running", f"volume {run.name}_run")
    again = launch("up", str(run.runs.parent / f"{run.name}.yaml"), runs=run.runs)
    assert again.returncode == 2
    assert "runs already" in again.stderr
    # Stopped as if it were kept: with a last checkpoint.
    reached = run.step()
    run.launcher("down", run.name)
    status = run.status()
    assert (status["state"], status["reason"]) == ("stopped", "asked to stop")
    assert status["checkpoint_step"] >= reached
    assert left(run.name)["containers"] == []
    summary = docker("run", "--rm", "--volume", f"{run.name}_run:/runs:ro", "--entrypoint", "cat", image.name, f"/runs/{run.name}/run.json")
    assert json.loads(summary)["state"] == "stopped"
    # From elsewhere its spec is not known: it is not gone on with unasked.
    elsewhere = launch("up", str(run.runs.parent / f"{run.name}.yaml"), runs=tmp_path / "elsewhere")
    assert elsewhere.returncode == 2
    assert "does not tell from which spec" in elsewhere.stderr
