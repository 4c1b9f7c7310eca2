"""Fixtures: runs that are cleaned up, and a launcher in the foreground that can be killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.plan.models import Plan
from launcher.plan.plan_json import to_document
from launcher.runs import process_identity, state_file
from launcher.runs.paths import RunPaths
from tests.launcher.backend.local.running import Runs


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    """A directory of runs, whose processes are killed at the end of the test."""
    all_runs = Runs(tmp_path / "runs")
    yield all_runs
    directories = list(all_runs.directory.iterdir()) if all_runs.directory.is_dir() else []
    for path in directories:
        snapshot = state_file.read(RunPaths(path).state)
        if snapshot and snapshot.supervisor and process_identity.alive(snapshot.supervisor):
            os.kill(snapshot.supervisor.pid, signal.SIGKILL)
        for pid in all_runs.processes(path.name):
            process_identity.send(pid, signal.SIGKILL)
    for fd in all_runs.backend._lifelines.values():
        os.close(fd)


@pytest.fixture
def foreground() -> Iterator[Callable[[Plan], "subprocess.Popen[str]"]]:
    """Start a run from another process, which then waits as `launcher up` does."""
    started: list[subprocess.Popen[str]] = []

    def start(plan: Plan) -> "subprocess.Popen[str]":
        text = (
            "import json, sys, time, pathlib\n"
            "from launcher.backend.local.backend import LocalBackend\n"
            "from launcher.backend.model import PlannedRun\n"
            "from launcher.plan.plan_json import from_document\n"
            "backend = LocalBackend(pathlib.Path(sys.argv[1]))\n"
            "backend.start(PlannedRun(from_document(json.load(sys.stdin)), {}), is_cancelled=lambda: False)\n"
            "print('started', flush=True)\n"
            "time.sleep(3600)\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", text, str(Path(plan.run_dir).parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        json.dump(to_document(plan), process.stdin)
        process.stdin.close()
        assert process.stdout.readline() == "started\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(5)
        if process.stdout:
            process.stdout.close()
