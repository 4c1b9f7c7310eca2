"""Orphans: processes that a killed supervisor left. They are found by their recorded identity, or by their environment, and ended.

Tasks notice by themselves that their supervisor is gone, save and exit. Orphans are those that have not exited yet, or never do.
"""

import contextlib
import dataclasses
import os
import shutil
import time

from launcher.errors import LauncherError
from launcher.runs import locks, process_identity, state_file
from launcher.runs.paths import RunPaths
from launcher.runs.state_file import Snapshot
from launcher.runs.status import ENDED, RunStatus, State

_POLL_INTERVAL = 0.1
# A verb that checks whether the run has a supervisor holds the lock for a moment.
_LOCK_TIMEOUT = 1.0
_CLOCK_TOLERANCE = 0.05  # seconds by which a file's time may be behind the clock
_KILLED = "the launcher's supervisor was killed"


def _find_recorded(paths: RunPaths, snapshot: Snapshot) -> dict[str, list[int]]:
    """Return the recorded processes that still run, by task: only those that certainly belong to this run, none if its directory is a copy."""
    if _is_copy(paths, snapshot):
        return {}
    orphans = {}
    for name, leader in snapshot.processes.items():
        members = process_identity.session_members(leader.pid)
        if not process_identity.alive(leader):
            # The id may belong to another session now, whose members do not have this run in their environment.
            members = [pid for pid in members if process_identity.started_for(pid, run_dir=str(paths.run_dir))]
        if members:
            orphans[name] = members
    return orphans


def interrupted(paths: RunPaths, snapshot: Snapshot) -> RunStatus:
    """Return the status of a run whose supervisor was gone before the run had ended."""
    orphans = _find_recorded(paths, snapshot)
    running = ", ".join(f"{name} (pid {members[0]})" for name, members in orphans.items())
    reason = f"{_KILLED}; still running: {running}; `launcher down {paths.name}` ends that" if orphans else _KILLED
    tasks = tuple(
        task
        if task.state in ENDED
        else dataclasses.replace(task, state=State.INTERRUPTED, reason=_KILLED, pid=orphans.get(task.name, [None])[0])
        for task in snapshot.status.tasks
    )
    return snapshot.status.with_end(State.INTERRUPTED, reason, snapshot.status.ended or _written_at(paths), tasks=tasks)


def clear(paths: RunPaths, *, now: bool) -> int:
    """End the orphans of a run, and record it as interrupted; return how many were killed. Does nothing while it has a supervisor.

    The tasks get their grace period to exit by themselves, or none with `now`. Raises LauncherError if some cannot be ended, and OSError if
    the state cannot be written.
    """
    snapshot = state_file.read(paths.state)
    if snapshot is None or snapshot.status.state in ENDED:
        return 0
    lock_fd = locks.acquire(paths.lock, timeout=_LOCK_TIMEOUT)
    if lock_fd is None:
        return 0
    try:
        deadline = time.monotonic() + (0 if now else snapshot.grace_period)
        while (orphans := _find_recorded(paths, snapshot)) and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)
        for name in orphans:
            process_identity.kill_session(snapshot.processes[name].pid)
        if orphans and (remaining := _find_recorded(paths, snapshot)):
            # The state stays unchanged, so that the next stop tries again.
            pids = ", ".join(f"{name} (pid {members[0]})" for name, members in remaining.items())
            raise LauncherError(
                f"processes of the run {paths.name} cannot be ended: {pids}", "end these processes yourself, then try again"
            )
        state_file.write(paths.state, dataclasses.replace(snapshot, status=interrupted(paths, snapshot)))
        return sum(map(len, orphans.values()))
    finally:
        os.close(lock_fd)


def _find_all(paths: RunPaths) -> list[int]:
    """Return the ids of all processes that have this run in their environment, if no supervisor holds its lock.

    It needs no record, which is gone if the run's directory was removed.
    """
    return [] if locks.held(paths.lock) else process_identity.task_pids(str(paths.run_dir))


def describe_all(paths: RunPaths) -> str:
    """Return the processes of `_find_all` as text, `process 12, 34`; empty if there are none."""
    return _described(pids) if (pids := _find_all(paths)) else ""


def _described(pids: list[int]) -> str:
    return f"process {', '.join(map(str, pids))}"


def kill_all(paths: RunPaths) -> int:
    """Kill the processes of `_find_all`; return how many there were. Raises LauncherError if some remain."""
    pids = _find_all(paths)
    for pid in pids:
        process_identity.kill_session(process_identity.session_of(pid) or pid)
    if remaining := describe_all(paths):
        raise LauncherError(f"tasks of the run {paths.name} cannot be ended: {remaining}", "end these processes yourself, then try again")
    return len(pids)


def wait_until_gone(paths: RunPaths, timeout: float) -> str:
    """Wait until no process of the run remains: a supervisor whose directory was removed ends them. Return those that remain as text, or ""."""
    deadline = time.monotonic() + timeout
    while (pids := process_identity.task_pids(str(paths.run_dir))) and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL)
    return _described(pids) if pids else ""


def remove_recreated(paths: RunPaths, since: float) -> None:
    """Remove a run's directory if tasks recreated it by saving after its removal at `since` (seconds since the epoch).

    Nothing is removed if a file is older than that: then these tasks have not saved it.
    """
    with contextlib.suppress(OSError):
        entries = [path for path in paths.run_dir.iterdir() if path != paths.launcher_dir]
        files = [file for path in entries for file in (path.rglob("*") if path.is_dir() else [path]) if not file.is_dir()]
        if any(file.lstat().st_mtime < since - _CLOCK_TOLERANCE for file in files):
            return
        for path in entries:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        paths.run_dir.rmdir()  # fails if another run has been started there since


def _is_copy(paths: RunPaths, snapshot: Snapshot) -> bool:
    """Return whether this directory is a copy: the directory in which the run was started still exists, and has the same processes."""
    started_in = snapshot.status.local_run_dir
    try:
        if started_in is None or started_in.samefile(paths.run_dir):
            return False
    except OSError:  # it does not exist, so it was moved
        return False
    original = state_file.read(RunPaths(started_in).state)
    return original is not None and any(process in original.processes.values() for process in snapshot.processes.values())


def _written_at(paths: RunPaths) -> float | None:
    try:
        return paths.state.stat().st_mtime
    except OSError:
        return None
