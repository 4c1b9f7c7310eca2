"""`down` and `up` of one run at the same time: one goes first, both succeed, and the last one decides the result."""

import json
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
from tests.e2e.docker.running import NOTHING, ROOT, Run, launch, objects_of, started
from trainer.exit_codes import ExitCode

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("image")]

SLEEPING = {"name": "raced", "command": ["sleep", "3600"], "limits": {"grace_period": "20s"}}
# Takes longer to save than an `up` waits for the run's lock by itself.
SLOW_TO_SAVE = (
    "import os, pathlib, signal, sys, time\n"
    "run = pathlib.Path(os.environ['RUN_DIR'])\n"
    "run.mkdir(exist_ok=True)\n"
    "def save(*_):\n    time.sleep(5)\n    (run / 'saved').write_text('all of it')\n    sys.exit(143)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "print('up', flush=True)\ntime.sleep(3600)"
)


def file_of(run: Run) -> str:
    return str(run.runs.parent / f"{run.name}.yaml")


def is_locked(run: Run) -> bool:
    return locks.held(RunPaths(run.runs / ".docker" / run.name).lock)


def in_background(run: Run, *arguments: str, environment: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "launcher", arguments[0], "--on", "docker", "--runs", str(run.runs), *arguments[1:]]
    variables = os.environ | (environment or {})
    return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def output_of_success(process: "subprocess.Popen[str]") -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


def assert_runs_and_can_be_stopped(run: Run) -> None:
    assert run.status()["state"] == "running"
    assert run.inspect("chief")["State"]["Running"]
    run.launcher("down", run.name)
    assert run.status()["state"] == "stopped"
    assert objects_of(run.name) == NOTHING | {"volumes": [f"{run.name}_run"]}


def test_down_does_not_mistake_the_next_run_for_the_one_that_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(SLEEPING, tmp_path) as run:
        before = run.inspect("chief")["Id"]
        backend = DockerBackend(run.runs)
        stop = backend._supervised.stop

        def stop_then_start_again(name: str, *, now: bool) -> None:
            stop(name, now=now)
            # The worst moment: the old supervisor has ended, and the stop has not yet looked at what it left.
            run.launcher("up", file_of(run), "--detach")

        monkeypatch.setattr(backend._supervised, "stop", stop_then_start_again)
        backend.stop(run.name)
        assert run.inspect("chief")["Id"] != before
        assert_runs_and_can_be_stopped(run)


def test_up_waits_for_a_down_in_progress(tmp_path: Path, image: Built) -> None:
    with started(SLEEPING | {"command": ["python", "-c", SLOW_TO_SAVE]}, tmp_path) as run:
        before = run.inspect("chief")["Id"]
        run.until("the program to run", lambda: "up" in docker("logs", run.container("chief")), 60)
        supervisor = run.supervisor()
        supervisor.kill()  # so that `down` itself stops the containers, under the run's lock
        run.until("the supervisor to end", lambda: not supervisor.is_running() and not is_locked(run), 20)
        down = in_background(run, "down", run.name)
        run.until("down to stop the run", lambda: is_locked(run), 60)
        up = in_background(run, "up", file_of(run), "--detach")
        assert "is stopped" in output_of_success(down)
        output_of_success(up)
        saved = docker("run", "--rm", "--volume", f"{run.name}_run:/runs", "--entrypoint", "cat", image.name, f"/runs/{run.name}/saved")
        assert saved == "all of it"
        assert run.inspect("chief")["Id"] != before
        assert_runs_and_can_be_stopped(run)


def test_down_stops_a_run_that_is_still_starting(tmp_path: Path) -> None:
    # Only the supervisor runs in the root directory. It is slow to find its engine: meanwhile the run is locked, but not yet supervised.
    slow = tmp_path / "slow"
    slow.mkdir()
    shim = slow / "docker"
    shim.write_text(f'#!/bin/sh\n[ "$(pwd)" = / ] && [ "$1" = context ] && sleep 2\nexec {shutil.which("docker")} "$@"\n')
    shim.chmod(0o755)
    with started(SLEEPING, tmp_path) as run:
        run.launcher("down", run.name)
        # Its containers are not all started: an init container does not end.
        waiting = SLEEPING | {"version": 1, "name": run.name, "init_containers": [{"name": "waits", "command": ["sleep", "3600"]}]}
        Path(file_of(run)).write_text(json.dumps(waiting))
        up = in_background(run, "up", file_of(run), "--resume", environment={"PATH": f"{slow}:{os.environ['PATH']}"})
        run.until("up to take the lock", lambda: is_locked(run), 60)
        assert run.status()["state"] != "stopped"  # the status of the new supervisor, not of the last one
        result = launch("down", run.name, runs=run.runs)
        assert result.returncode == 0, result.stdout + result.stderr
        assert "is stopped" in result.stdout
        output, _ = up.communicate(timeout=120)
        assert up.returncode == ExitCode.STOPPED, output
        assert f"the run {run.name} was not started: its start was interrupted" in output
        assert objects_of(run.name) == NOTHING | {"volumes": [f"{run.name}_run"]}
        assert run.status()["state"] == "stopped"
