"""Examples reach their results in containers: a program by the launcher, all-reduce by only Compose.

The README's commands (test_readme.py) train the one with parameter servers. The other examples train only in the tests of local runs;
in test_compose_file.py Compose reads their rendered files.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.docker_cli import docker
from tests.e2e.code.brought import bare
from tests.e2e.docker.running import EXAMPLES, NOTHING, ROOT, Run, cleaned, get, launch, objects_of, unique
from tests.processes import free_port

pytestmark = [pytest.mark.docker, pytest.mark.trains, pytest.mark.usefixtures("image")]

DIGITS = 0.97  # at least, of the held-out digits


def test_the_launcher_runs_a_program_and_every_verb_shows_it_until_it_is_deleted(tmp_path: Path) -> None:
    port, name = free_port(), unique("life")
    runs = tmp_path / "runs"
    with cleaned(name, runs) as run:
        up = ("up", str(EXAMPLES / "life.yaml"), "--set", f"name={name}", "--set", f"tensorboard.port={port}")
        result = launch(*up, "--json", runs=runs)
        assert result.returncode == 0, f"{result.stdout[-5000:]}\n{result.stderr}"
        assert "is there" in result.stderr  # the image, with the reason for its choice
        lines: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
        summary = lines[-1]
        assert (summary["event"], summary["state"], summary["restarts"]) == ("summary", "succeeded", {})
        assert summary["run_dir"] == f"volume {name}_run"
        logs = run.launcher("logs", name)
        assert logs
        assert run.status()["metrics"]["period"] == 30  # the known period of the gun in the pattern
        assert run.launcher("tensorboard", name).strip() == f"http://127.0.0.1:{port}"
        run.await_tensorboard(port, "images", "train")
        # A second `up` finds it complete; `down` keeps its results until they are deleted.
        again = launch(*up, runs=runs)
        assert (again.returncode, "is complete" in again.stdout) == (0, True), again.stdout + again.stderr
        run.launcher("down", name)
        assert objects_of(name) == NOTHING | {"volumes": [f"{name}_run"]}
        assert run.status()["state"] == "succeeded"
        assert run.launcher("logs", name) == logs
        run.launcher("get", name, "results", str(tmp_path / "results"))
        assert "worker-2" in (tmp_path / "results" / "devices.txt").read_text()
        _check_tensorboard_of_stopped_run(run)
        run.launcher("down", name, "--delete-data", "--yes")
        assert objects_of(name) == NOTHING
        assert not (runs / name).exists()


def test_users_programs_run_with_the_trainer_that_comes_with_the_run(tmp_path: Path) -> None:
    """TensorFlow 1 with ps in `server.join()` and no chief; Keras fit. The image has the trainer, but that of the run is used."""
    specs = {
        "between-graph": bare("parameter_server", {"ps": {}, "worker": {"replicas": 2}}, "tests/programs", "between_graph.py"),
        "keras-fit": bare("multi_worker_mirrored", {"worker": {"replicas": 2}}, "examples/keras-fit", "train.py", "--epochs", "2"),
    }
    for kind, spec in specs.items():
        name = unique(kind)
        file = tmp_path / f"{kind}.yaml"
        file.write_text(yaml.safe_dump({"version": 1, "name": name, "tensorboard": {"port": free_port()}, **spec}))
        with cleaned(name, tmp_path / "runs") as run:
            run.launcher("up", str(file))
            status = run.status()
            assert (status["state"], {task["state"] for task in status["tasks"]}) == ("succeeded", {"succeeded"}), status
            assert sum(len(task["restarts"]) for task in status["tasks"]) == 0


def _check_tensorboard_of_stopped_run(run: Run) -> None:
    """TensorBoard of a stopped run answers at the given port, and ends with the next `down`."""
    for port in (free_port(), free_port()):
        assert run.launcher("tensorboard", run.name, "--port", str(port)).strip() == f"http://127.0.0.1:{port}"
        run.await_tensorboard(port, "images", "train")
    assert run.launcher("tensorboard", run.name, "--port", "0").startswith("http://127.0.0.1:")  # at its present port, or at a free one
    run.launcher("down", run.name)
    assert objects_of(run.name) == NOTHING | {"volumes": [f"{run.name}_run"]}


def test_compose_without_the_launcher_trains_an_example_and_the_launcher_finds_its_run(tmp_path: Path) -> None:
    name, port = "mnist-multiworker", free_port()
    project = unique(name)
    # The committed file, except for name and port, which two runs cannot share.
    text = (ROOT / "compose" / f"{name}.yaml").read_text().replace("published: '6006'", f"published: '{port}'")
    file = tmp_path / "compose.yaml"
    file.write_text(text.replace(f"name: {name}\n", f"name: {project}\n", 1).replace(f"run: {name}\n", f"run: {project}\n"))
    compose = ("compose", "--file", str(file))
    with cleaned(project, tmp_path / "runs") as run:
        docker(*compose, "up", "--detach", timeout=120)
        tasks = run.tasks()
        # All but TensorBoard end by themselves and succeed: `docker compose up` waits for that.
        docker("wait", *(run.container(task) for task in tasks), timeout=240)
        assert {task: run.inspect(task)["State"]["ExitCode"] for task in tasks} == dict.fromkeys(tasks, 0)
        assert {task: run.inspect(task)["RestartCount"] for task in tasks} == dict.fromkeys(tasks, 0)
        status = run.status()
        assert status["state"] == "succeeded"
        assert status["metrics"]["accuracy"] >= DIGITS
        assert project in run.launcher("ls")
        assert {line.split()[0] for line in run.launcher("logs", project).splitlines()} == set(tasks)
        assert status["tensorboard"] == f"http://127.0.0.1:{port}", get(f"http://127.0.0.1:{port}/data/environment")
        run.await_tensorboard(port, "scalars", "train", "eval")
        # Its data stays when its containers are removed.
        docker(*compose, "down", timeout=120)
        assert objects_of(project) == NOTHING | {"volumes": [f"{project}_run"]}
        assert run.status()["state"] == "stopped"
        docker(*compose, "down", "--volumes", timeout=120)
        assert objects_of(project) == NOTHING
