"""Orphans: processes that a killed supervisor left. They are found by their identity, reported, and cleaned up.

The tasks notice by themselves that their supervisor is gone, save and leave. Orphans are those that have not left yet, or never do.
"""

import contextlib
import dataclasses
import os
import shutil
import time

from launcher.errors import LauncherError, UsageError
from launcher.runs import locks, process_identity, state_file
from launcher.runs.paths import RunPaths
from launcher.runs.state_file import Snapshot
from launcher.runs.status import ENDED, RunStatus, State

_POLL_INTERVAL = 0.1
# A verb that only looks whether the run has a supervisor holds its lock for a moment.
_LOCK_TIMEOUT = 1.0
_CLOCKS = 0.05  # seconds by which a file's time may be behind the clock
_KILLED = "the launcher's supervisor was killed"


def find(paths: RunPaths, snapshot: Snapshot) -> dict[str, list[int]]:
    """Return task name -> its processes that still run, for certain of this run; none of a run whose directory this is a copy of."""
    if _is_copy(paths, snapshot):
        return {}
    found = {}
    for name, leader in snapshot.processes.items():
        members = process_identity.session(leader.pid)
        if not process_identity.alive(leader):
            # The number may have gone to another session since; its members would not know this run.
            members = [pid for pid in members if process_identity.belongs(pid, run_dir=str(paths.run_dir))]
        if members:
            found[name] = members
    return found


def interrupted(paths: RunPaths, snapshot: Snapshot) -> RunStatus:
    """Return the status of a run whose supervisor is gone before the run had ended."""
    left = find(paths, snapshot)
    still = ", ".join(f"{name} (pid {members[0]})" for name, members in left.items())
    reason = f"{_KILLED}; still running: {still}; `launcher down {paths.name}` ends that" if left else _KILLED
    tasks = tuple(
        task
        if task.state in ENDED
        else dataclasses.replace(task, state=State.INTERRUPTED, reason=_KILLED, pid=left.get(task.name, [None])[0])
        for task in snapshot.status.tasks
    )
    ended = snapshot.status.ended or _written(paths)
    return dataclasses.replace(
        snapshot.status, state=State.INTERRUPTED, reason=reason, reason_task="", ended=ended, eta=None, save_failed=None, tasks=tasks
    )


def clear(paths: RunPaths, *, now: bool) -> int:
    """End the orphans of a run, and note it as interrupted; return how many were killed. Does nothing while it has a supervisor.

    The tasks get their grace period to leave by themselves, none with `now`. Raises LauncherError when some cannot be ended, and OSError when
    nothing can be written.
    """
    snapshot = state_file.read(paths.state)
    if snapshot is None or snapshot.status.state in ENDED:
        return 0
    lock_fd = locks.acquire(paths.lock, timeout=_LOCK_TIMEOUT)
    if lock_fd is None:
        return 0
    try:
        deadline = time.monotonic() + (0 if now else snapshot.grace_period)
        while (left := find(paths, snapshot)) and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)
        for name in left:
            process_identity.kill_session(snapshot.processes[name].pid)
        if left and (stayed := find(paths, snapshot)):
            # The state stays as it is, so that the next stop tries again.
            who = ", ".join(f"{name} (pid {members[0]})" for name, members in stayed.items())
            raise LauncherError(f"processes of the run {paths.name} cannot be ended: {who}", "end these processes yourself, then try again")
        state_file.write(paths.state, dataclasses.replace(snapshot, status=interrupted(paths, snapshot)))
        return sum(map(len, left.values()))
    finally:
        os.close(lock_fd)


def leftover_processes(paths: RunPaths) -> str:
    """Return the ids of this run's processes, as `process 12, 34`, where it has no supervisor and its directory was removed while they ran.

    Empty where there are none.
    """
    found = [] if locks.held(paths.lock) else process_identity.tasks_of(str(paths.run_dir))
    return f"process {', '.join(map(str, found))}" if found else ""


def kill_leftover_processes(paths: RunPaths) -> int:
    """Kill what `leftover_processes` finds; return how many processes. Raises LauncherError when some stay."""
    found = [] if locks.held(paths.lock) else process_identity.tasks_of(str(paths.run_dir))
    for pid in found:
        process_identity.kill_session(process_identity.session_of(pid) or pid)
    if stayed := leftover_processes(paths):
        raise LauncherError(f"tasks of the run {paths.name} cannot be ended: {stayed}", "end these processes yourself, then try again")
    return len(found)


def wait_until_gone(paths: RunPaths, within: float) -> None:
    """Wait until no leftover process is there: a supervisor whose directory is gone ends them. Raises UsageError when some stay."""
    deadline = time.monotonic() + within
    while process_identity.tasks_of(str(paths.run_dir)):
        if time.monotonic() >= deadline:
            there = ", ".join(map(str, process_identity.tasks_of(str(paths.run_dir))))
            raise UsageError(
                f"tasks of an earlier run {paths.name} in {paths.run_dir} still run: process {there}",
                f"end them with `launcher down {paths.name}`, then try again",
            )
        time.sleep(_POLL_INTERVAL)


def remove_recreated(paths: RunPaths, since: float) -> None:
    """Remove what tasks have saved in place of a run's directory that was removed while they ran, at `since` (seconds since the epoch) or later.

    Nothing is removed if something is older: these tasks have not saved it.
    """
    with contextlib.suppress(OSError):
        returned = [path for path in paths.run_dir.iterdir() if path != paths.directory]
        files = [file for path in returned for file in (path.rglob("*") if path.is_dir() else [path]) if not file.is_dir()]
        if any(file.lstat().st_mtime < since - _CLOCKS for file in files):
            return
        for path in returned:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        paths.run_dir.rmdir()  # not where a run has been started there since


def _is_copy(paths: RunPaths, snapshot: Snapshot) -> bool:
    """Return whether this directory is a copy: the one in which the run was started is still there, and the processes are of that one."""
    started_in = snapshot.status.directory
    try:
        if started_in is None or started_in.samefile(paths.run_dir):
            return False
    except OSError:  # it is not there, so it was moved
        return False
    original = state_file.read(RunPaths(started_in).state)
    return original is not None and any(process in original.processes.values() for process in snapshot.processes.values())


def _written(paths: RunPaths) -> float | None:
    try:
        return paths.state.stat().st_mtime
    except OSError:
        return None
