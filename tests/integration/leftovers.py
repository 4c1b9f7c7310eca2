"""Finds the processes of a run, wherever they went: what no run may leave behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

from launcher.runs import process_identity, state_file
from launcher.runs.paths import RunPaths


def running(directory: Path) -> list[int]:
    """Return every process of the run in `directory`: its supervisor, its tasks, and all that those have started."""
    found = {pid for pid in _kept(directory) if process_identity.identify(pid) is not None}
    if sys.platform == "linux":  # also what has left its session: every process inherits RUN_DIR
        found |= {int(name) for name in os.listdir("/proc") if name.isdecimal() and _told(int(name), directory)}  # noqa: PTH208
    return sorted(found - {os.getpid()})


def assert_none(directory: Path, timeout: float = 30) -> None:
    """Fail if processes of the run stay; those that are just ending get `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while (left := running(directory)) and time.monotonic() < deadline:
        time.sleep(0.1)
    shown = subprocess.run(["ps", "-o", "pid,ppid,stat,args", "-p", ",".join(map(str, left)) or "0"], capture_output=True, check=False)
    assert not left, f"processes of {directory} are left:\n{shown.stdout.decode()}"


def _kept(directory: Path) -> list[int]:
    snapshot = state_file.read(RunPaths(directory).state)
    if snapshot is None:
        return []
    supervisor = snapshot.supervisor
    supervisor_pid = [supervisor.pid] if supervisor and process_identity.alive(supervisor) else []
    leaders = [leader for leader in snapshot.processes.values() if process_identity.alive(leader)]
    return supervisor_pid + [pid for leader in leaders for pid in process_identity.session(leader.pid)]


def _told(pid: int, directory: Path) -> bool:
    return process_identity.identify(pid) is not None and process_identity.belongs(pid, run_dir=str(directory))
