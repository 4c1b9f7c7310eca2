"""An engine at the other end of a network, which cannot see directories of this machine, and whose network may go silent."""

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

pytestmark = [pytest.mark.docker, pytest.mark.timeout(720), pytest.mark.usefixtures("image")]


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
        done = launch("up", str(file), runs=tmp_path / "runs", environment=by_relay)
        assert (done.returncode, "it runs elsewhere" in done.stdout) == (0, True), done.stdout + done.stderr


def test_the_engine_is_that_of_the_context_in_use(by_relay: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "config"))
    docker("context", "create", "far", "--docker", f"host={by_relay['DOCKER_HOST']}")
    file = spec(tmp_path, "refused", code=str(tmp_path), command=["true"])
    for chosen in ({"DOCKER_CONTEXT": "far"}, {"DOCKER_CONTEXT": "nowhere"}):
        done = launch("up", str(file), runs=tmp_path / "runs", environment=chosen)
        said = done.stderr + done.stdout
        if chosen["DOCKER_CONTEXT"] == "far":
            assert (done.returncode, f"is on another machine ({by_relay['DOCKER_HOST']})" in said) == (2, True), said
        else:
            assert (done.returncode, "the current Docker context cannot be used" in said) == (1, True), said
    docker("context", "use", "far")
    listed = launch("ls", runs=tmp_path / "runs")
    assert listed.returncode == 0, listed.stderr


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # the lost connections
def test_a_network_that_goes_silent_is_noticed(
    lose: Callable[[], None], by_relay: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is silent for longer than an answer may be.
    monkeypatch.setattr(run_containers, "_ANSWER_TIMEOUT", 4)
    monkeypatch.setattr(event_stream, "_SILENT", 3.0)
    program = "import time\nfor second in range(600):\n    print(f'second {second}', flush=True)\n    time.sleep(1)"
    with contextlib.ExitStack() as until_cleaned:
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("DOCKER_HOST", by_relay["DOCKER_HOST"])
            there = until_cleaned.enter_context(supervised(tmp_path, command=["python", "-c", program]))
        log = there.of.paths.log("chief")

        def seconds() -> list[int]:
            return [int(second) for second in re.findall(r"second (\d+)\n", log.read_text())] if log.exists() else []

        there.run.until("output", seconds, 60)
        lose()
        lost = seconds()[-1]
        # The log goes on, and has every line.
        there.run.until("the log to go on", lambda: seconds()[-1] > lost + 10, seen=seconds)
        found = seconds()
        assert found == list(range(len(found)))
        # And the end is heard of.
        docker("kill", "--signal", "KILL", there.run.container("chief"))
        there.run.until("the supervisor to start it again", lambda: there.status().tasks[0].restarts, seen=there.status)
        there.run.until("it to begin again", lambda: seconds().count(0) == 2, seen=seconds)
