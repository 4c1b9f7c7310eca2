"""Examples train in containers under a bare `docker compose up`, and every example is run in one way or the other."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launcher.docker_cli import docker
from tests.e2e.docker.examples import BY_COMPOSE, by_strategy
from tests.e2e.docker.running import EXAMPLES, NOTHING, PACED, ROOT, cleaned, get, left, unique
from tests.e2e.reached import assert_reached
from tests.processes import free_port

pytestmark = [pytest.mark.docker, pytest.mark.timeout(330)]


def test_every_example_is_run_once() -> None:
    everywhere = [
        *BY_COMPOSE,
        *by_strategy("single", "mirrored"),
        *by_strategy("parameter_server", "multi_worker_mirrored"),
        *by_strategy("manual"),
    ]
    assert sorted(file.stem for file in EXAMPLES.glob("*.yaml")) == sorted(everywhere)


@pytest.mark.parametrize("name", BY_COMPOSE)
@pytest.mark.usefixtures("image")
def test_compose_alone_trains_it_and_the_launcher_finds_it(name: str, tmp_path: Path) -> None:
    port, project = free_port(), unique(name)
    # As it is committed, but for what two runs cannot share: the name and the port.
    text = (ROOT / "compose" / f"{name}.yaml").read_text().replace("published: '6006'", f"published: '{port}'")
    text = text.replace(f"name: {name}\n", f"name: {project}\n", 1).replace(f"run: {name}\n", f"run: {project}\n")
    file = tmp_path / "compose.yaml"
    file.write_text(text.replace("../examples/", f"{EXAMPLES}/"))
    with cleaned(project, tmp_path / "runs") as run:
        docker("compose", "--file", str(file), "up", "--detach", deadline=120)
        tasks = run.tasks()
        # All but TensorBoard end by themselves, and well: that is what `docker compose up` waits for.
        docker("wait", *(run.container(task) for task in tasks), deadline=240)
        assert {task: run.inspect(task)["State"]["ExitCode"] for task in tasks} == dict.fromkeys(tasks, 0)
        assert {task: run.inspect(task)["RestartCount"] for task in tasks} == dict.fromkeys(tasks, 0)
        status = run.status()
        assert status["state"] == "succeeded"
        assert project in run.launcher("ls")
        logs = run.launcher("logs", project)
        assert_reached(name, status, logs)
        told = get(f"http://127.0.0.1:{port}/data/environment")
        assert status["tensorboard"] == f"http://127.0.0.1:{port}", told
        if name.startswith("mnist"):
            run.shown(port, "scalars", "train", "eval")
        # What it stored stays when its containers go.
        docker("compose", "--file", str(file), "down", deadline=120)
        assert left(project) == {"containers": [], "networks": [], "volumes": [f"{project}_run"]}
        assert run.status()["state"] == "stopped"
        docker("compose", "--file", str(file), "down", "--volumes", deadline=120)
        assert left(project) == NOTHING


@pytest.mark.usefixtures("image")
def test_compose_alone_goes_on_where_it_was_taken_down(tmp_path: Path) -> None:
    project = unique("taken-down")
    served = {"strategy": "parameter_server", "roles": {"chief": {}, "ps": {"replicas": 1}, "worker": {"replicas": 1}}}
    file = tmp_path / "spec.yaml"
    # It is saved as it is taken down, and never before.
    train = PACED["train"] | {"checkpoint": {"every_steps": 1_000_000}}
    file.write_text(
        yaml.safe_dump({"version": 1, "name": project, "tensorboard": {"port": free_port()}, **served, **PACED, "train": train})
    )
    rendered = tmp_path / "compose.yaml"
    with cleaned(project, tmp_path / "runs") as run:
        render = [sys.executable, "-m", "launcher", "render", str(file), "--to", "compose", "--output", str(rendered)]
        subprocess.run(render, cwd=ROOT, check=True, timeout=60)
        compose = ("compose", "--file", str(rendered))
        docker(*compose, "up", "--detach", deadline=120)
        run.goes_on("chief")
        docker(*compose, "stop", deadline=120)
        codes = {task: run.inspect(task)["State"]["ExitCode"] for task in run.tasks()}
        assert codes["chief"] == 143
        assert set(codes.values()) <= {0, 143}  # servers are told to leave, or asked to stop: none is killed
        (saved,) = run.events("chief", "checkpoint")
        docker(*compose, "down", deadline=120)
        docker(*compose, "up", "--detach", deadline=120)
        (restored,) = run.until("the chief to go on", lambda: run.events("chief", "restored"))
        assert restored["step"] == saved["step"] > 0
        run.goes_on("chief")
