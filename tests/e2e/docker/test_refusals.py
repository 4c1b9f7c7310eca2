"""A run that cannot work is refused with a remedy and leaves nothing, and a wrong configuration is tried once."""

import contextlib
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from docker import from_env

from launcher.backend.docker.stop import stop
from launcher.docker_cli import docker
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import NOTHING, ROOT, cleaned, launch, objects_of, unique
from tests.processes import free_port
from tests.stand_in import stand_in

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("image")]


def spec(directory: Path, **more: Any) -> Path:
    """Write a spec of one task, under a name and on a port of its own."""
    train = {} if "command" in more else {"train": {"workload": "mnist_mlp", "steps": 5}}
    document = {"version": 1, "name": unique("refused"), "tensorboard": {"port": free_port()}} | train | more
    file = directory / f"{document['name']}.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def assert_refused(file: Path, message: str, remedy: str, *, environment: dict[str, str] | None = None, code: int = 1) -> None:
    """Check that `up` has this error and remedy, and leaves nothing."""
    with cleaned(file.stem, file.parent / "runs") if environment is None else contextlib.nullcontext():
        result = launch("up", str(file), runs=file.parent / "runs", environment=environment)
        assert result.returncode == code, result.stdout + result.stderr
        lines = result.stderr.splitlines()
        assert any(line.startswith("error:") and re.search(message, line) for line in lines), result.stderr
        assert any(line.startswith("remedy:") and remedy in line for line in lines), result.stderr
        assert objects_of(file.stem) == NOTHING


def test_a_taken_port_without_a_next_one_is_refused(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with socket.create_server(("127.0.0.1", 65535)):
        file = spec(tmp_path, tensorboard={"port": 65535})
        assert_refused(file, "TensorBoard's port is taken", "--set tensorboard.port")
        with cleaned(file.stem, runs) as run:
            assert launch("up", str(file), runs=runs).returncode == 1
            # The run has nothing to show, and only its reason is left.
            for more in ((), ("--port", str(free_port()))):
                shown = launch("tensorboard", run.name, *more, runs=runs)
                assert (shown.returncode, "was never started" in shown.stderr) == (2, True), shown.stderr
            assert objects_of(run.name) == NOTHING
            assert "port is taken" in run.status()["reason"]


@pytest.mark.parametrize(
    "cluster",
    [
        {"roles": {"chief": {"gpus": 1}}},  # by count
        {"roles": {"worker": {"replicas": 2, "gpus": 1}}, "strategy": "multi_worker_mirrored"},  # by number
    ],
    ids=["one task", "several"],
)
def test_gpus_on_an_engine_without_any_are_refused(cluster: dict[str, Any], image: Built, tmp_path: Path) -> None:
    if "nvidia" in docker("info", "--format", "{{json .Runtimes}}"):
        pytest.skip("this engine has the nvidia runtime")
    assert_refused(spec(tmp_path, image=image.name, **cluster), "no GPUs available: .*nvidia", "NVIDIA Container Toolkit")


def test_more_cores_than_the_machine_has_are_refused(tmp_path: Path) -> None:
    assert_refused(spec(tmp_path, roles={"chief": {"cpu": 1000}}), "more cores than the engine's machine has", "`cpu` of its role")


def test_an_image_that_cannot_be_pulled_is_refused(tmp_path: Path) -> None:
    name = "localhost:1/no/such:image"
    assert_refused(spec(tmp_path, image=name), f"pulling the image {name} failed", f"docker pull {name}")


def test_a_volume_of_no_run_is_refused_and_stays(tmp_path: Path) -> None:
    file = spec(tmp_path)
    volume = docker("volume", "create", f"{file.stem}_run").strip()
    try:
        for more in ((), ("--fresh",)):
            result = launch("up", str(file), *more, runs=tmp_path / "runs")
            assert (result.returncode, "does not belong to a run called" in result.stderr) == (1, True), result.stdout + result.stderr
            assert f"docker volume inspect {volume}" in result.stderr
        assert docker("volume", "ls", "--quiet", "--filter", f"name={volume}").split() == [volume]
    finally:
        docker("volume", "rm", volume)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a user without rights")
def test_an_engine_without_permission_is_an_error_with_a_remedy() -> None:
    engine = Path(docker("context", "inspect", "--format", "{{.Endpoints.docker.Host}}").strip().removeprefix("unix://"))
    if not engine.is_socket() or engine.stat().st_mode & stat.S_IWOTH:
        pytest.skip(f"the engine at {engine} admits every user")
    # A user who may only read this checkout, wherever it is.
    reads = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *reads)
    command = [*user, sys.executable, "-m", "launcher", "ls", "--on", "docker"]
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o777)
        environment = os.environ | {"HOME": home, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        result = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if result.stderr.startswith("setpriv:"):
        pytest.skip(f"this root may not give others the right to read this checkout: {result.stderr.strip()}")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "error: no permission to use the Docker engine" in result.stderr
    assert "add yourself to the group docker" in result.stderr


def test_an_engine_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    assert_refused(spec(tmp_path), "engine does not answer", "docker info", environment={"DOCKER_HOST": "unix:///nowhere.sock"})


def test_a_missing_docker_command_is_an_error(tmp_path: Path) -> None:
    assert_refused(spec(tmp_path), "command docker is not installed", "docker info", environment={"PATH": str(tmp_path)})


def test_a_missing_compose_plugin_is_an_error(tmp_path: Path) -> None:
    # `docker composed` has the real command's error of a missing plugin.
    shim = tmp_path / "docker"
    real = shutil.which("docker")
    shim.write_text(f'#!/bin/sh\n[ "$1" = compose ] && {{ shift; exec {real} composed "$@"; }}\nexec {real} "$@"\n')
    shim.chmod(0o755)
    assert_refused(spec(tmp_path), "no Compose plugin", "docker compose version", environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"})


def test_a_wrong_configuration_is_tried_once_and_fails_the_run_at_once(tmp_path: Path) -> None:
    roles: dict[str, Any] = {"chief": {}, "ps": {}, "worker": {}}
    sections = stand_in.spec(params={"wrong": "it cannot be trained"})
    file = spec(tmp_path, strategy="parameter_server", roles=roles, **sections)
    name = file.stem
    with cleaned(name, tmp_path / "runs") as run:
        result = launch("up", str(file), "--json", runs=tmp_path / "runs")
        summary = json.loads(result.stdout.splitlines()[-1])
        assert (result.returncode, summary["state"], summary["restarts"]) == (1, "failed", {}), result.stdout[-4000:]
        assert "the configuration is wrong" in summary["reason"]
        assert "it cannot be trained" in summary["reason"]
        failed = [task for task, status in run.tasks_status().items() if status["state"] == "failed"]
        assert failed
        for task in failed:
            state = run.inspect(task)
            assert (state["State"]["ExitCode"], state["RestartCount"]) == (2, 0)
        assert not any(run.inspect(task)["State"]["Running"] for task in run.tasks())
        # They do not restart with the engine.
        assert {run.inspect(task)["HostConfig"]["RestartPolicy"]["Name"] for task in run.tasks()} == {"no"}


def test_none_of_several_tasks_with_a_permanent_failure_is_started_again(tmp_path: Path) -> None:
    program = ["python", "-c", "import sys; sys.exit(2)"]
    file = spec(tmp_path, strategy="multi_worker_mirrored", roles={"worker": {"replicas": 3}}, command=program)
    with cleaned(file.stem, tmp_path / "runs") as run:
        result = launch("up", str(file), "--json", runs=tmp_path / "runs")
        assert result.returncode == 1, result.stdout[-4000:]
        containers = {task: run.inspect(task) for task in run.tasks()}
        assert len(containers) == 3
        assert {facts["HostConfig"]["RestartPolicy"]["Name"] for facts in containers.values()} == {"no"}
        # The engine is not about to start one.
        assert not any(facts["State"]["Running"] or facts["State"]["Restarting"] for facts in containers.values())


def test_a_stop_disables_restarts_even_if_the_container_ends_at_that_moment(image: Built) -> None:
    """The engine reverts a change of a container whose process ends meanwhile: of one in twenty here."""
    engine = from_env()

    def stopped(number: int) -> str:
        command = ["python", "-c", "import sys, time; time.sleep(0.3); sys.exit(2)"]
        container = engine.containers.run(
            image.name, command, entrypoint=[], detach=True, restart_policy={"Name": "on-failure", "MaximumRetryCount": 5}
        )
        try:
            time.sleep(0.25 + 0.02 * (number % 12))
            stop(container, 1)
            container.reload()
            return str(container.attrs["HostConfig"]["RestartPolicy"]["Name"])
        finally:
            container.remove(force=True)

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(stopped, range(48))) == {"no"}


def test_volumes_of_the_user_s_image_are_removed_with_its_containers(image: Built, tmp_path: Path) -> None:
    name = f"tf-launcher/test:{unique('volume')}"
    (tmp_path / "Dockerfile").write_text(f"FROM {image.name}\nVOLUME /scratch\n")
    docker("build", "--tag", name, str(tmp_path), timeout=300)
    try:
        file = spec(tmp_path, image=name, command=["python", "-c", "print('done')"])
        with cleaned(file.stem, tmp_path / "runs") as run:
            result = launch("up", str(file), runs=tmp_path / "runs")
            assert result.returncode == 0, result.stdout + result.stderr
            mounted = [mount["Name"] for mount in run.inspect("chief")["Mounts"] if mount["Destination"] == "/scratch"]
            assert docker("volume", "ls", "--quiet", "--filter", f"name={mounted[0]}").split() == mounted
            run.launcher("down", run.name)
            assert docker("volume", "ls", "--quiet", "--filter", f"name={mounted[0]}").split() == []
    finally:
        docker("image", "rm", "--force", name)
