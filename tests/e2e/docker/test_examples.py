"""Examples come in containers to the results they are there for: a program by the launcher, all-reduce by Compose alone.

The README's commands (test_readme.py) train the one with parameter servers. Each other example trains in the tests of local runs alone;
what is rendered of it for containers Compose reads in test_compose_file.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.docker_cli import docker
from tests.e2e.code.brought import bare
from tests.e2e.docker.running import EXAMPLES, NOTHING, ROOT, Run, cleaned, get, launch, left, unique
from tests.processes import free_port

pytestmark = [pytest.mark.docker, pytest.mark.trains, pytest.mark.timeout(990), pytest.mark.usefixtures("image")]

DIGITS = 0.97  # at least, of the held-out digits


def test_the_launcher_runs_a_program_and_every_verb_tells_of_it_until_nothing_is_left(tmp_path: Path) -> None:
    port, own = free_port(), unique("life")
    runs = tmp_path / "runs"
    with cleaned(own, runs) as run:
        up = ("up", str(EXAMPLES / "life.yaml"), "--set", f"name={own}", "--set", f"tensorboard.port={port}")
        done = launch(*up, "--json", runs=runs)
        assert done.returncode == 0, f"{done.stdout[-5000:]}\n{done.stderr}"
        assert "is there" in done.stderr  # the image: which one, and why
        lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
        summary = lines[-1]
        assert (summary["event"], summary["state"], summary["restarts"]) == ("summary", "succeeded", {})
        assert summary["run_dir"] == f"volume {own}_run"
        logs = run.launcher("logs", own)
        assert logs
        assert run.status()["metrics"]["period"] == 30  # as the gun in the pattern is known to have
        assert run.launcher("tensorboard", own).strip() == f"http://127.0.0.1:{port}"
        run.await_tensorboard(port, "images", "train")
        # Again: it is complete. Down: its results stay, then they go.
        again = launch(*up, runs=runs)
        assert (again.returncode, "is complete" in again.stdout) == (0, True), again.stdout + again.stderr
        run.launcher("down", own)
        assert left(own) == NOTHING | {"volumes": [f"{own}_run"]}
        assert run.status()["state"] == "succeeded"
        assert run.launcher("logs", own) == logs
        run.launcher("get", own, "results", str(tmp_path / "results"))
        assert "worker-2" in (tmp_path / "results" / "devices.txt").read_text()
        _its_logs_are_shown_again(run)
        run.launcher("down", own, "--delete-data", "--yes")
        assert left(own) == NOTHING
        assert not (runs / own).exists()


def test_programs_as_users_bring_them_run_in_an_image_that_has_no_trainer_for_them(tmp_path: Path) -> None:
    """TensorFlow 1 with ps in `server.join()` and no chief; Keras fit. The image has the trainer, too, but what comes with the run is taken."""
    brought = {
        "between-graph": bare("parameter_server", {"ps": {}, "worker": {"replicas": 2}}, "tests/programs", "between_graph.py"),
        "keras-fit": bare("multi_worker_mirrored", {"worker": {"replicas": 2}}, "examples/keras-fit", "train.py", "--epochs", "2"),
    }
    for name, spec in brought.items():
        own = unique(name)
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump({"version": 1, "name": own, "tensorboard": {"port": free_port()}, **spec}))
        with cleaned(own, tmp_path / "runs") as run:
            run.launcher("up", str(file))
            told = run.status()
            assert (told["state"], {task["state"] for task in told["tasks"]}) == ("succeeded", {"succeeded"}), told
            assert sum(len(task["restarts"]) for task in told["tasks"]) == 0


def _its_logs_are_shown_again(run: Run) -> None:
    """TensorBoard of a run that was taken down answers where one says, and goes with the next `down`."""
    for port in (free_port(), free_port()):
        assert run.launcher("tensorboard", run.name, "--port", str(port)).strip() == f"http://127.0.0.1:{port}"
        run.await_tensorboard(port, "images", "train")
    assert run.launcher("tensorboard", run.name, "--port", "0").startswith("http://127.0.0.1:")  # where it is, or at a free port
    run.launcher("down", run.name)
    assert left(run.name) == NOTHING | {"volumes": [f"{run.name}_run"]}


def test_compose_alone_trains_it_and_the_launcher_finds_it(tmp_path: Path) -> None:
    name, port = "mnist-multiworker", free_port()
    project = unique(name)
    # As it is committed, but for what two runs cannot share: the name and the port.
    text = (ROOT / "compose" / f"{name}.yaml").read_text().replace("published: '6006'", f"published: '{port}'")
    file = tmp_path / "compose.yaml"
    file.write_text(text.replace(f"name: {name}\n", f"name: {project}\n", 1).replace(f"run: {name}\n", f"run: {project}\n"))
    compose = ("compose", "--file", str(file))
    with cleaned(project, tmp_path / "runs") as run:
        docker(*compose, "up", "--detach", deadline=120)
        tasks = run.tasks()
        # All but TensorBoard end by themselves, and well: that is what `docker compose up` waits for.
        docker("wait", *(run.container(task) for task in tasks), deadline=240)
        assert {task: run.inspect(task)["State"]["ExitCode"] for task in tasks} == dict.fromkeys(tasks, 0)
        assert {task: run.inspect(task)["RestartCount"] for task in tasks} == dict.fromkeys(tasks, 0)
        status = run.status()
        assert status["state"] == "succeeded"
        assert status["metrics"]["accuracy"] >= DIGITS
        assert project in run.launcher("ls")
        assert {line.split()[0] for line in run.launcher("logs", project).splitlines()} == set(tasks)
        assert status["tensorboard"] == f"http://127.0.0.1:{port}", get(f"http://127.0.0.1:{port}/data/environment")
        run.await_tensorboard(port, "scalars", "train", "eval")
        # Its data stays when its containers go.
        docker(*compose, "down", deadline=120)
        assert left(project) == NOTHING | {"volumes": [f"{project}_run"]}
        assert run.status()["state"] == "stopped"
        docker(*compose, "down", "--volumes", deadline=120)
        assert left(project) == NOTHING
