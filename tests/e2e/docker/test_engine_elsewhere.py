"""An engine at the other end of a network, which cannot see directories of this machine, and whose network may go silent."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from launcher.docker_cli import docker
from tests.e2e.docker.running import Run, cleaned, launch, unique
from tests.processes import free_port

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240), pytest.mark.usefixtures("image")]


def spec(directory: Path, name: str, **more: object) -> Path:
    document = {"version": 1, "name": unique(name), "tensorboard": {"port": free_port()}, **more}
    file = directory / f"{document['name']}.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def test_a_directory_is_refused_and_a_run_without_one_trains(by_relay: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    train = {"workload": "mnist_mlp", "steps": 5}
    refused = launch("up", str(spec(tmp_path, "refused", code="./src", train=train)), runs=tmp_path / "runs", environment=by_relay)
    assert refused.returncode == 2
    assert re.search(r"^error: the Docker engine is on another machine", refused.stderr, re.MULTILINE)
    assert re.search(r"^remedy: .*launcher image build --code", refused.stderr, re.MULTILINE)
    file = spec(tmp_path, "elsewhere", train=train)
    with cleaned(file.stem, tmp_path / "runs"):
        done = launch("up", str(file), runs=tmp_path / "runs", environment=by_relay)
        assert done.returncode == 0, done.stderr


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
            assert (done.returncode, "the Docker context that is set up cannot be used" in said) == (1, True), said
    docker("context", "use", "far")
    listed = launch("ls", runs=tmp_path / "runs")
    assert listed.returncode == 0, listed.stderr


def test_a_network_that_goes_silent_is_noticed(lose: Callable[[], None], by_relay: dict[str, str], tmp_path: Path) -> None:
    # It says nothing by itself for longer than an answer may be silent.
    program = "import time\nfor second in range(600):\n    print(f'second {second}', flush=True)\n    time.sleep(1)"
    file = spec(tmp_path, "silent", command=["python", "-c", program])
    with cleaned(file.stem, tmp_path / "runs"):
        started = launch("up", str(file), "--detach", runs=tmp_path / "runs", environment=by_relay)
        assert started.returncode == 0, started.stderr
        run = Run(file.stem, tmp_path / "runs")
        run.until("output", lambda: last_second(run) is not None, 60)
        lose()
        lost = last_second(run)
        assert lost is not None
        # The log goes on, and has every line.
        run.until("the log to go on", lambda: (last_second(run) or 0) > lost + 40, 120)
        seconds = [int(second) for second in re.findall(r"second (\d+)$", log(run), re.MULTILINE)]
        assert seconds == list(range(len(seconds)))
        # And the end is heard of.
        docker("kill", "--signal", "KILL", run.container("chief"))
        run.until("the keeper to start it again", lambda: seconds_since_start(run) < len(seconds), 60)


def log(run: Run) -> str:
    path = run.runs / run.name / "launcher" / "tasks" / "chief.log"
    return path.read_text() if path.exists() else ""


def last_second(run: Run) -> int | None:
    found = re.findall(r"second (\d+)$", log(run), re.MULTILINE)
    return int(found[-1]) if found else None


def seconds_since_start(run: Run) -> int:
    return last_second(run) or 0
