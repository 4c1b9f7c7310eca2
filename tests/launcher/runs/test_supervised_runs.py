"""Stops of a run whose supervisor does not react, or is not known."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import LauncherError
from launcher.runs import locks, process_identity, spawn, state_file, supervised_runs
from launcher.runs.paths import RunPaths
from launcher.runs.process_identity import Identity
from launcher.runs.state_file import Snapshot
from launcher.runs.status import RunStatus, State
from launcher.runs.supervised_runs import SupervisedRuns
from tests.golden_messages import Golden
from tests.waiting import until

# Waits for a child in its session and ignores a stop, as a supervisor that waits for Docker Compose.
SUPERVISOR = """
import signal, subprocess
signal.signal(signal.SIGQUIT, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "3600"])
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """Return the paths of a run."""
    return RunPaths(tmp_path / "runs" / "toy")


@pytest.fixture
def lock(paths: RunPaths) -> Iterator[int]:
    """Hold the run's lock, and return it."""
    fd = spawn.lock(paths)
    yield fd
    os.close(fd)


def record(paths: RunPaths, supervisor: Identity | None, host: str = "") -> None:
    """Write the state of a run that is running."""
    state_file.write(paths.state, Snapshot(RunStatus("toy", "docker", State.RUNNING), host or socket.gethostname(), supervisor))


def test_a_supervisor_that_does_not_stop_is_killed_with_the_processes_that_it_started(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised_runs, "KILL_TIMEOUT", 0.3)
    fd = spawn.lock(paths)
    command = [sys.executable, "-c", SUPERVISOR]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, pass_fds=[fd]) as supervisor:
        os.close(fd)
        assert supervisor.stdout is not None
        child = int(supervisor.stdout.readline())
        record(paths, process_identity.identify(supervisor.pid))
        SupervisedRuns(paths.run_dir.parent, "docker").stop("toy", now=True)
        try:
            until("the end of the child", lambda: process_identity.identify(child) is None, seen=lambda: child)
        finally:
            process_identity.kill_session(supervisor.pid)
    assert not locks.held(paths.lock)


@pytest.mark.parametrize("has_state", [True, False])
def test_a_run_that_another_launcher_starts_or_stops_here_is_not_said_to_be_elsewhere(
    paths: RunPaths, lock: int, has_state: bool, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    assert lock
    monkeypatch.setattr(supervised_runs, "_FIRST_STATE_TIMEOUT", 0.0)
    if has_state:
        record(paths, None)
    with pytest.raises(LauncherError) as caught:
        SupervisedRuns(paths.run_dir.parent, "docker").stop("toy")
    golden(caught.value.message, caught.value.remedy)


def test_the_stop_of_a_run_of_another_machine_names_that_machine(paths: RunPaths, lock: int, golden: Golden) -> None:
    assert lock
    record(paths, None, host="far")
    with pytest.raises(LauncherError) as caught:
        SupervisedRuns(paths.run_dir.parent, "docker").stop("toy")
    golden(caught.value.message, caught.value.remedy, here=socket.gethostname())
