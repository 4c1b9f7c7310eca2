"""What cannot work is refused with what to do, nothing is left of it, and a wrong configuration is tried once."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.docker_cli import docker
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import NOTHING, ROOT, cleaned, free_port, launch, left, unique

pytestmark = [pytest.mark.docker, pytest.mark.timeout(200), pytest.mark.usefixtures("image")]


def spec(directory: Path, **more: Any) -> Path:
    """Write a spec of one task, under a name and on a port of its own."""
    train = {} if "command" in more else {"train": {"workload": "mnist_mlp", "steps": 5}}
    document = {"version": 1, "name": unique("refused"), "tensorboard": {"port": free_port()}} | train | more
    file = directory / f"{document['name']}.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def refused(file: Path, message: str, remedy: str, *, environment: dict[str, str] | None = None, code: int = 1) -> None:
    """Check that `up` says what is wrong and what to do, and leaves nothing running."""
    with cleaned(file.stem, file.parent / "runs") if environment is None else contextlib.nullcontext():
        done = launch("up", str(file), runs=file.parent / "runs", environment=environment)
        assert done.returncode == code, done.stdout + done.stderr
        said = done.stderr.splitlines()
        assert any(line.startswith("error:") and re.search(message, line) for line in said), done.stderr
        assert any(line.startswith("remedy:") and remedy in line for line in said), done.stderr
        assert {**left(file.stem), "volumes": []} == NOTHING


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        file = spec(tmp_path, tensorboard={"port": server.getsockname()[1]})
        refused(file, "TensorBoard's port is taken", "--set tensorboard.port")


def test_gpus_where_there_are_none(image: Built, tmp_path: Path) -> None:
    if "nvidia" in docker("info", "--format", "{{json .Runtimes}}"):
        pytest.skip("this engine has the nvidia runtime")
    refused(spec(tmp_path, image=image.name, roles={"chief": {"gpus": 1}}), "no GPUs to give", "NVIDIA Container Toolkit")


def test_more_cores_than_there_are(tmp_path: Path) -> None:
    refused(spec(tmp_path, roles={"chief": {"cpu": 1000}}), "more cores than the engine's machine has", "--set roles.worker.cpu")


def test_an_image_that_is_nowhere(tmp_path: Path) -> None:
    refused(spec(tmp_path, image="localhost:1/nobody/has:this"), "pulling the image localhost:1/nobody/has:this failed", "")


def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    refused(spec(tmp_path), "engine does not answer", "docker info", environment={"DOCKER_HOST": "unix:///nowhere.sock"})


def test_no_docker_command(tmp_path: Path) -> None:
    refused(spec(tmp_path), "command docker is not installed", "docker info", environment={"PATH": str(tmp_path)})


def test_no_compose_plugin(tmp_path: Path) -> None:
    # As the command says it where the plugin is missing; in all else it is the real one.
    shim = tmp_path / "docker"
    shim.write_text(
        f'#!/bin/sh\n[ "$1" = compose ] && {{ echo "docker: \'compose\' is not a docker command." >&2; exit 1; }}\nexec {shutil.which("docker")} "$@"\n'
    )
    shim.chmod(0o755)
    refused(spec(tmp_path), "no Compose plugin", "docker compose version", environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"})


def test_a_directory_on_an_engine_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    engine = docker("context", "inspect", "--format", "{{.Endpoints.docker.Host}}").strip()
    if not engine.startswith("unix://"):
        pytest.skip(f"the engine is at {engine}, not at a socket to forward")
    relay = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("relay.py")), engine.removeprefix("unix://")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert relay.stdout is not None
        environment = {"DOCKER_HOST": f"tcp://127.0.0.1:{relay.stdout.readline().strip()}"}
        file = spec(tmp_path, code="./src")
        refused(file, "engine is on another machine", "launcher image build --code", environment=environment, code=2)
        # Without directories of this machine it trains there.
        file = spec(tmp_path)
        with cleaned(file.stem, tmp_path / "runs"):
            done = launch("up", str(file), runs=tmp_path / "runs", environment=environment)
            assert done.returncode == 0, done.stderr
    finally:
        relay.kill()
        relay.communicate()


def test_a_wrong_configuration_is_tried_once_and_fails_the_run_at_once(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "wrong.py").write_text("class Net:\n    pass\n")
    roles: dict[str, Any] = {"chief": {}, "ps": {}, "worker": {}}
    file = spec(tmp_path, strategy="parameter_server", roles=roles, code="./src", train={"workload": "wrong:Net", "steps": 5})
    name = file.stem
    with cleaned(name, tmp_path / "runs") as run:
        done = launch("up", str(file), "--json", runs=tmp_path / "runs")
        summary = json.loads(done.stdout.splitlines()[-1])
        assert (done.returncode, summary["state"], summary["restarts"]) == (1, "failed", {}), done.stdout[-4000:]
        assert "the configuration is wrong" in summary["reason"]
        failed = [task for task, told in run.tasks_status().items() if told["state"] == "failed"]
        assert failed
        for task in failed:
            state = run.inspect(task)
            assert (state["State"]["ExitCode"], state["RestartCount"]) == (2, 0)
        assert not any(run.inspect(task)["State"]["Running"] for task in run.tasks())
        assert summary["seconds"] < 90


def test_the_commands_of_the_readme_work_one_after_the_other(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh docker\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    if left("mnist-ps") != NOTHING:
        pytest.skip("this engine has a run called mnist-ps, which is somebody's")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with cleaned("mnist-ps", tmp_path / "runs"):
        done = subprocess.run(
            ["bash", "-exc", "\n".join(blocks)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "mnist-ps succeeded" in done.stdout
        assert left("mnist-ps") == {"containers": [], "networks": [], "volumes": ["mnist-ps_run"]}
