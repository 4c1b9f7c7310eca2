"""An engine on another machine, which cannot see directories of this one, and whose network may go silent."""

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from launcher.backend.docker import event_stream, run_containers
from launcher.docker_cli import docker
from tests.e2e.docker.running import cleaned, launch, unique
from tests.e2e.docker.supervising import supervised
from tests.processes import free_port

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("image")]


def spec(directory: Path, name: str, **more: object) -> Path:
    document = {"version": 1, "name": unique(name), "tensorboard": {"port": free_port()}, **more}
    file = directory / f"{document['name']}.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def test_a_directory_is_refused_and_a_run_without_one_runs(by_relay: dict[str, str], tmp_path: Path) -> None:
    train = {"workload": "mnist_mlp", "steps": 5}
    refused = launch("up", str(spec(tmp_path, "refused", code=str(tmp_path), train=train)), runs=tmp_path / "runs", environment=by_relay)
    assert refused.returncode == 2
    assert re.search(r"^error: the Docker engine is on another machine", refused.stderr, re.MULTILINE)
    assert re.search(r"^remedy: .*launcher image build --code", refused.stderr, re.MULTILINE)
    file = spec(tmp_path, "elsewhere", command=["sh", "-c", "echo it runs elsewhere"])
    with cleaned(file.stem, tmp_path / "runs"):
        result = launch("up", str(file), runs=tmp_path / "runs", environment=by_relay)
        assert (result.returncode, "it runs elsewhere" in result.stdout) == (0, True), result.stdout + result.stderr


def test_the_engine_of_the_current_context_is_used(by_relay: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "config"))
    docker("context", "create", "far", "--docker", f"host={by_relay['DOCKER_HOST']}")
    file = spec(tmp_path, "refused", code=str(tmp_path), command=["true"])
    for variables in ({"DOCKER_CONTEXT": "far"}, {"DOCKER_CONTEXT": "nowhere"}):
        result = launch("up", str(file), runs=tmp_path / "runs", environment=variables)
        output = result.stderr + result.stdout
        if variables["DOCKER_CONTEXT"] == "far":
            assert (result.returncode, f"is on another machine ({by_relay['DOCKER_HOST']})" in output) == (2, True), output
        else:
            assert (result.returncode, "the current Docker context cannot be used" in output) == (1, True), output
    docker("context", "use", "far")
    listed = launch("ls", runs=tmp_path / "runs")
    assert listed.returncode == 0, listed.stderr


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # the lost connections
def test_a_network_that_goes_silent_is_noticed(
    lose_connections: Callable[[], None], by_relay: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The silence lasts longer than the launcher waits for an answer.
    monkeypatch.setattr(run_containers, "_ANSWER_TIMEOUT", 4)
    monkeypatch.setattr(event_stream, "_IDLE_TIMEOUT", 3.0)
    program = "import time\nfor second in range(600):\n    print(f'second {second}', flush=True)\n    time.sleep(1)"
    with contextlib.ExitStack() as cleanup:
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("DOCKER_HOST", by_relay["DOCKER_HOST"])
            supervised_run = cleanup.enter_context(supervised(tmp_path, command=["python", "-c", program]))
        log = supervised_run.prepared.paths.log("chief")

        def seconds() -> list[int]:
            return [int(second) for second in re.findall(r"second (\d+)\n", log.read_text())] if log.exists() else []

        supervised_run.run.until("output", seconds, 60)
        lose_connections()
        last = seconds()[-1]
        # The log continues, and has every line.
        supervised_run.run.until("the log to continue", lambda: seconds()[-1] > last + 10, seen=seconds)
        logged = seconds()
        assert logged == list(range(len(logged)))
        # The end is noticed, too.
        docker("kill", "--signal", "KILL", supervised_run.run.container("chief"))
        supervised_run.run.until(
            "the supervisor to start it again", lambda: supervised_run.status().tasks[0].restarts, seen=supervised_run.status
        )
        supervised_run.run.until("the program to begin again", lambda: seconds().count(0) == 2, seen=seconds)
