"""Finds processes that a run has left behind, also those that have left their session."""

import os
import subprocess
import sys
import time
from pathlib import Path

from launcher.runs import process_identity, state_file
from launcher.runs.paths import RunPaths


def running(directory: Path) -> list[int]:
    """Return every process of the run in `directory`: its supervisor, its tasks, and all that those have started."""
    pids = {pid for pid in _recorded(directory) if process_identity.identify(pid) is not None}
    if sys.platform == "linux":  # also those that have left their session: every process inherits RUN_DIR
        pids |= {int(name) for name in os.listdir("/proc") if name.isdecimal() and _belongs(int(name), directory)}  # noqa: PTH208
    return sorted(pids - {os.getpid()})


def assert_none(directory: Path, timeout: float = 30) -> None:
    """Fail if processes of the run still exist after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while (remaining := running(directory)) and time.monotonic() < deadline:
        time.sleep(0.1)
    ps = subprocess.run(["ps", "-o", "pid,ppid,stat,args", "-p", ",".join(map(str, remaining)) or "0"], capture_output=True, check=False)
    assert not remaining, f"processes of {directory} remain:\n{ps.stdout.decode()}"


def _recorded(directory: Path) -> list[int]:
    snapshot = state_file.read(RunPaths(directory).state)
    if snapshot is None:
        return []
    supervisor = snapshot.supervisor
    supervisor_pid = [supervisor.pid] if supervisor and process_identity.alive(supervisor) else []
    leaders = [leader for leader in snapshot.processes.values() if process_identity.alive(leader)]
    return supervisor_pid + [pid for leader in leaders for pid in process_identity.session_members(leader.pid)]


def _belongs(pid: int, directory: Path) -> bool:
    return process_identity.identify(pid) is not None and process_identity.started_for(pid, run_dir=str(directory))
