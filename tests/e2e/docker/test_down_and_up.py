"""`down` and `up` of one run at the same time: one of them is first, both end well, and what the last one made is there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.backend.docker.backend import DockerBackend
from launcher.docker_cli import docker
from launcher.runs import locks
from launcher.runs.paths import RunPaths
from tests.e2e.docker.conftest import Built
from tests.e2e.docker.running import NOTHING, ROOT, Run, launch, left, started

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600), pytest.mark.usefixtures("image")]

SLEEPS = {"name": "raced", "command": ["sleep", "1000"], "limits": {"grace_period": "20s"}}
# Takes its time to save, longer than an `up` waits for the run's lock by itself.
SAVES_SLOWLY = (
    "import os, pathlib, signal, sys, time\n"
    "run = pathlib.Path(os.environ['RUN_DIR'])\n"
    "run.mkdir(exist_ok=True)\n"
    "def save(*_):\n    time.sleep(5)\n    (run / 'saved').write_text('all of it')\n    sys.exit(143)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "print('up', flush=True)\ntime.sleep(1000)"
)


def file_of(run: Run) -> str:
    return str(run.runs.parent / f"{run.name}.yaml")


def is_locked(run: Run) -> bool:
    return locks.held(RunPaths(run.runs / ".docker" / run.name).lock)


def in_background(run: Run, *arguments: str, environment: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "launcher", arguments[0], "--on", "docker", "--runs", str(run.runs), *arguments[1:]]
    known = os.environ | (environment or {})
    return subprocess.Popen(command, cwd=ROOT, env=known, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended_well(process: "subprocess.Popen[str]") -> str:
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return said


def assert_runs_and_can_be_stopped(run: Run) -> None:
    assert run.status()["state"] == "running"
    assert run.inspect("chief")["State"]["Running"]
    run.launcher("down", run.name)
    assert run.status()["state"] == "stopped"
    assert left(run.name) == NOTHING | {"volumes": [f"{run.name}_run"]}


def test_a_down_does_not_take_the_run_that_follows_for_the_one_that_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(SLEEPS, tmp_path) as run:
        before = run.inspect("chief")["Id"]
        backend = DockerBackend(run.runs)
        stop = backend._supervised.stop

        def stop_and_be_overtaken(name: str, *, now: bool) -> None:
            stop(name, now=now)
            # The old supervisor is gone, and the stop has not looked yet at what that left: the worst moment.
            run.launcher("up", file_of(run), "--detach")

        monkeypatch.setattr(backend._supervised, "stop", stop_and_be_overtaken)
        backend.stop(run.name)
        assert run.inspect("chief")["Id"] != before
        assert_runs_and_can_be_stopped(run)


def test_an_up_waits_for_a_down_that_is_at_it(tmp_path: Path, image: Built) -> None:
    with started(SLEEPS | {"command": ["python", "-c", SAVES_SLOWLY]}, tmp_path) as run:
        before = run.inspect("chief")["Id"]
        run.until("the program to run", lambda: "up" in docker("logs", run.container("chief")), 60)
        supervisor = run.supervisor()
        supervisor.kill()  # so that it is `down` itself that stops the containers, under the run's lock
        run.until("the supervisor to be gone", lambda: not supervisor.is_running() and not is_locked(run), 20)
        down = in_background(run, "down", run.name)
        run.until("it to stop the run", lambda: is_locked(run), 60)
        up = in_background(run, "up", file_of(run), "--detach")
        assert "is stopped" in ended_well(down)
        ended_well(up)
        saved = docker("run", "--rm", "--volume", f"{run.name}_run:/runs", "--entrypoint", "cat", image.name, f"/runs/{run.name}/saved")
        assert saved == "all of it"
        assert run.inspect("chief")["Id"] != before
        assert_runs_and_can_be_stopped(run)


def test_a_down_stops_a_run_that_is_only_being_started(tmp_path: Path) -> None:
    # The supervisor, alone in the root directory, is slow to find its engine: the run's lock is taken, and nobody has it yet.
    slow = tmp_path / "slow"
    slow.mkdir()
    shim = slow / "docker"
    shim.write_text(f'#!/bin/sh\n[ "$(pwd)" = / ] && [ "$1" = context ] && sleep 2\nexec {shutil.which("docker")} "$@"\n')
    shim.chmod(0o755)
    with started(SLEEPS, tmp_path) as run:
        run.launcher("down", run.name)
        up = in_background(run, "up", file_of(run), "--detach", environment={"PATH": f"{slow}:{os.environ['PATH']}"})
        run.until("it to take the lock", lambda: is_locked(run), 60)
        assert run.status()["state"] != "stopped"  # what the supervisor says that comes, and not what the last one said
        done = launch("down", run.name, runs=run.runs)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "is stopped" in done.stdout
        ended_well(up)
        assert left(run.name) == NOTHING | {"volumes": [f"{run.name}_run"]}
        assert run.status()["state"] == "stopped"
