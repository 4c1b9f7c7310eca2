"""Every example trains in containers, to the accuracy it is there for: here with the launcher, some in test_compose_alone.py."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.docker_cli import docker
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import EXAMPLES, NOTHING, ROOT, Run, cleaned, free_port, get, launch, left, unique
from tests.integration.test_examples import ACCURACY, COMMANDS, DIGITS, OWN_PROGRAM, PROGRAMS, SMALL, TRAINED

pytestmark = [pytest.mark.docker, pytest.mark.timeout(330)]

BY_COMPOSE = ("mnist-evaluator", "mnist-multiworker", "custom-ps")
# Where an example is made for more time than there is here, it is set as in the tests of local runs.
BY_LAUNCHER = {name: changes for name, (changes, _) in TRAINED.items() if name not in BY_COMPOSE} | {
    "mnist-ps": (),
    "custom-command": (),
    **dict.fromkeys(PROGRAMS, ()),
    # On a busy machine the workers' gradients are of older weights, and so few steps as elsewhere do not reach the bounds.
    "cifar10-ps": (*SMALL, "train.steps=1000"),
}


def test_every_example_is_run_here() -> None:
    assert sorted(file.stem for file in EXAMPLES.glob("*.yaml")) == sorted([*BY_COMPOSE, *BY_LAUNCHER])


@pytest.mark.parametrize("file", sorted((ROOT / "compose").glob("*.yaml")), ids=lambda file: file.stem)
def test_compose_takes_the_committed_file(file: Path) -> None:
    read = json.loads(docker("compose", "--file", str(file), "config", "--format", "json"))
    assert read["name"] == file.stem
    assert set(read["services"]) == set(yaml.safe_load(file.read_text())["services"])


def assert_reached(name: str, run: Run, logs: str) -> None:
    """Check that a run has come to what its example is there for: its metrics, or what a program says of itself."""
    if name in COMMANDS:
        said = OWN_PROGRAM.findall(logs)
        assert len(said) == 1, logs[-3000:]  # the chief alone
        assert float(said[0]) >= ACCURACY
        return
    expected = PROGRAMS[name][0] if name in PROGRAMS else TRAINED.get(name, ((), DIGITS))[1]
    metrics = run.status()["metrics"]
    for metric, (low, high) in expected.items():
        assert low <= metrics[metric] <= high, metrics


@pytest.mark.parametrize("name", BY_LAUNCHER)
@pytest.mark.usefixtures("image")
def test_the_launcher_trains_it(name: str, tmp_path: Path) -> None:
    port, own = free_port(), unique(name)
    runs = tmp_path / "runs"
    with cleaned(own, runs) as run:
        changes = (f"name={own}", f"tensorboard.port={port}", *BY_LAUNCHER[name])
        arguments = (*(word for change in changes for word in ("--set", change)), "--json")
        done = launch("up", str(EXAMPLES / f"{name}.yaml"), *arguments, runs=runs)
        assert done.returncode == 0, f"{done.stdout[-5000:]}\n{done.stderr}"
        assert "is there" in done.stderr  # the image: which one, and why
        lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
        summary = lines[-1]
        assert (summary["event"], summary["state"], summary["restarts"]) == ("summary", "succeeded", {})
        assert summary["run_dir"] == f"volume {own}_run"
        logs = run.launcher("logs", own)
        assert_reached(name, run, logs)
        assert run.launcher("tensorboard", own).strip() == f"http://127.0.0.1:{port}"
        if name == "mnist-single":
            tags = get(f"http://127.0.0.1:{port}/data/plugin/images/tags")
            assert tags["train"], tags
        # Again: it is complete. Down: its results stay, then they go.
        again = launch("up", str(EXAMPLES / f"{name}.yaml"), *arguments[:-1], runs=runs)
        assert (again.returncode, "is complete" in again.stdout) == (0, True), again.stdout + again.stderr
        run.launcher("down", own)
        assert left(own) == {"containers": [], "networks": [], "volumes": [f"{own}_run"]}
        assert run.status()["state"] == "succeeded"
        assert run.launcher("logs", own) == logs
        run.launcher("down", own, "--delete-data", "--yes")
        assert left(own) == NOTHING
        assert not (runs / own).exists()


def test_ctrl_c_saves_and_up_goes_on_and_fresh_keeps_the_old_volume(image: Built, tmp_path: Path) -> None:
    spec = {
        "version": 1,
        "name": unique("stop"),
        "tensorboard": {"port": free_port()},
        "train": {"workload": "mnist_mlp", "steps": 1_000_000, "steps_per_execution": 50},
    }
    file, runs = tmp_path / "stop.yaml", tmp_path / "runs"
    file.write_text(yaml.safe_dump(spec))
    name = str(spec["name"])
    command = [sys.executable, "-m", "launcher", "up", str(file), "--on", "docker", "--runs", str(runs), "--json"]
    with cleaned(name, runs):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if json.loads(line)["event"] == "progress":
                    process.send_signal(signal.SIGINT)
                    break
            rest = [json.loads(line) for line in process.stdout]
        assert process.returncode == 130
        summary = rest[-1]
        assert summary["state"] == "stopped"
        assert summary["checkpoint_step"]
        assert left(name) == {"containers": [], "networks": [], "volumes": [f"{name}_run"]}
        more = ("--set", f"train.steps={summary['checkpoint_step'] + 50}")
        done = launch("up", str(file), "--resume", "--json", *more, runs=runs)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert [event["step"] for event in events if event["event"] == "restored"] == [summary["checkpoint_step"]]
        assert events[-1]["state"] == "succeeded"
        fresh = launch("up", str(file), "--fresh", "--json", "--set", "train.steps=50", runs=runs)
        assert fresh.returncode == 0, fresh.stderr
        aside = re.search(rf"volume ({name}\.\S+_run)", fresh.stderr)
        assert aside, fresh.stderr
        try:
            kept = docker("run", "--rm", "--volume", f"{aside[1]}:/runs", "--entrypoint", "ls", image.name, f"/runs/{name}/checkpoints")
            assert f"ckpt-{summary['checkpoint_step'] + 50}.index" in kept
        finally:
            docker("volume", "rm", aside[1])
        assert json.loads(fresh.stdout.splitlines()[-1])["step"] == 50
