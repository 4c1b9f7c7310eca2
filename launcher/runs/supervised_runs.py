"""Runs that a process on this machine supervises, from the files that it writes: status, logs, stop."""

import contextlib
import dataclasses
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launcher import files
from launcher.errors import LauncherError, UsageError, check_tasks, did_you_mean
from launcher.notify import delivery
from launcher.runs import locks, orphans, process_identity, run_json, state_file
from launcher.runs.log_merge import merged
from launcher.runs.os_errors import translate_os_errors
from launcher.runs.paths import RunPaths, is_run_name
from launcher.runs.reasons import killed_task_messages
from launcher.runs.state_file import Snapshot
from launcher.runs.status import ENDED, Location, LogLine, RunStatus, State, TaskStatus

# Seconds that a stop may take beyond the grace periods; a run with parameter servers has two of them.
_STOP_MARGIN = 20.0
KILL_TIMEOUT = 10.0  # seconds
_FIRST_STATE_TIMEOUT = 10.0  # seconds that a supervisor may take to write its first state


class SupervisedRuns:
    """The runs of one backend below a directory, each supervised by a process."""

    def __init__(self, runs: Path, backend: str) -> None:
        self._runs = runs.absolute()
        self._backend = backend
        # The supervisor of a foreground run stops it when its lifeline closes, at the latest with this process.
        self._lifelines: dict[str, int] = {}

    def hold_lifeline(self, name: str, lifeline: int | None) -> None:
        """Hold the lifeline of a run in the foreground: it stops when this process ends."""
        self._close_lifeline(name)
        if lifeline is not None:
            self._lifelines[name] = lifeline

    def holds_lifeline(self, name: str) -> bool:
        """Return whether this process holds the lifeline of a run, since it follows the run in the foreground."""
        return name in self._lifelines

    def status(self, name: str) -> RunStatus:
        """Return the status of the run. Raises UsageError if no run has that name."""
        paths = self.paths(name)
        if not self._exists(paths) and (lost := self._status_of_removed_directory(paths)):
            return lost
        return self._status(self._existing(name))

    def _status_of_removed_directory(self, paths: RunPaths) -> RunStatus | None:
        """Return the status of a run whose directory was removed while it ran; None if this process did not start it and none of its processes is left."""
        status = RunStatus(paths.name, self._backend, State.FAILED, run_dir=Location("directory", str(paths.run_dir)), ended=time.time())
        removed = f"{paths.run_dir} was removed while the run ran"
        if is_followed := paths.name in self._lifelines:
            orphans.wait_until_gone(paths, KILL_TIMEOUT)
        if running := orphans.describe_all(paths):
            reason = f"{removed}; still running: {running}; `launcher down {paths.name}` ends that"
            return dataclasses.replace(status, state=State.INTERRUPTED, reason=reason)
        return dataclasses.replace(status, reason=f"{removed}; its tasks were killed") if is_followed else None

    def spec(self, name: str) -> dict[str, Any] | None:
        """Return the spec that the run was started with last, or None."""
        return files.read_json(self.paths(name).spec)

    def runs(self) -> list[RunStatus]:
        """Return the status of every run below the directory, newest first."""
        listed: list[RunPaths] = []
        with translate_os_errors("listing the runs"), contextlib.suppress(FileNotFoundError):  # no run was started yet
            # Other names are not runs: `<name>.<time>` is a run that `up --fresh` renamed.
            listed = [RunPaths(path) for path in self._runs.iterdir() if is_run_name(path.name) and files.is_directory(path / "launcher")]
        statuses = [self._status(paths) for paths in listed if self._has_run(paths)]
        return sorted(statuses, key=lambda status: status.started or 0, reverse=True)

    def logs(self, name: str, *, tasks: list[str], follow: bool, since: float | None = None, tail: int | None = None) -> Iterator[LogLine]:
        """Yield the lines of `tasks` (of all tasks if it is empty) in order of time; `tail` counts for each task.

        Raises UsageError at once if there is no such run or task.
        """
        paths = self._existing(name)
        known = [task.name for task in self._status(paths).tasks]
        check_tasks(name, tasks, known)
        stored = {task: paths.log(task) for task in known if not tasks or task in tasks}
        return merged(stored, follow=follow, since=since, tail=tail, ended=lambda: not locks.held(paths.lock))

    def stop(self, name: str, *, now: bool = False, report: Callable[[str], object] | None = None) -> dict[str, int]:
        """Ask every task to save and stop, or kill it if `now`; return when nothing of the run is left. Idempotent. Returns how many orphans were killed."""
        paths = self.paths(name)
        if not self._exists(paths) and orphans.describe_all(paths):
            return _removed(orphans.kill_all(paths))
        ran = locks.held(paths.lock)
        orphan_count = self._stop(self._existing(name), now=now)
        if ran and not now and report is not None:
            for message in killed_task_messages(self.status(name)):
                report(message)
        orphan_count += orphans.kill_all(paths)
        self._close_lifeline(name)
        return _removed(orphan_count)

    def _stop(self, paths: RunPaths, *, now: bool) -> int:
        """Stop the run; return how many processes without a supervisor were killed."""
        name = paths.name
        if not locks.held(paths.lock):
            return orphans.clear(paths, now=now)
        snapshot = _await_snapshot(paths)
        supervisor = snapshot.supervisor if snapshot else None
        if snapshot is None or supervisor is None or not process_identity.alive(supervisor):
            if not locks.held(paths.lock):
                return 0
            host = socket.gethostname()
            if snapshot is not None and snapshot.host != host:
                raise LauncherError(
                    f"the run {name} is supervised by a process on {snapshot.host}; this is {host}", f"run `launcher down {name}` there"
                )
            raise LauncherError(
                f"the run {name} cannot be stopped now: another launcher is starting or stopping it",
                f"try again in a moment; if that does not help, end the process that holds its lock: fuser {paths.lock}",
            )
        if now or not snapshot.stopping:  # a later SIGTERM kills, so only wait for a stop that is in progress
            process_identity.send(supervisor.pid, signal.SIGQUIT if now else signal.SIGTERM)
        timeout = KILL_TIMEOUT if now else 2 * snapshot.grace_period + _STOP_MARGIN
        if not locks.wait_released(paths.lock, timeout=timeout, holder=supervisor):
            # With the processes that it has started: Docker Compose would create containers without it.
            process_identity.kill_session(supervisor.pid)
            locks.wait_released(paths.lock, timeout=KILL_TIMEOUT)
            return orphans.clear(paths, now=True)
        return 0

    def paths(self, name: str) -> RunPaths:
        """Return the paths of the run of that name. Raises UsageError for a text that cannot be a name."""
        if not name or name in {".", ".."} or "/" in name or "\0" in name:
            raise UsageError(f"{name!r} cannot be the name of a run", "list the runs with `launcher ls`")
        return RunPaths(self._runs / name)

    def _has_run(self, paths: RunPaths) -> bool:
        """Return whether a directory has a run of this backend: older launchers had runs of containers below `runs`/<name>, too.

        A run whose state cannot be read counts, since its data exists.
        """
        snapshot = state_file.read(paths.state)
        return snapshot.status.backend == self._backend if snapshot else state_file.exists(paths.state)

    def _exists(self, paths: RunPaths) -> bool:
        """Return whether a run exists or is starting here. A refused start leaves neither."""
        return self._has_run(paths) or locks.held(paths.lock)

    def _existing(self, name: str) -> RunPaths:
        """Return the paths of a run that exists. Raises UsageError if there is none."""
        paths = self.paths(name)
        if not self._exists(paths):
            known = sorted(status.name for status in self.runs())
            runs = (
                f"the runs in {self._runs} are {', '.join(known)}"
                if known
                else f"there are no runs in {self._runs}; --runs names another directory"
            )
            raise UsageError(
                f"there is no run {name}",
                f"{did_you_mean(name, known)}{runs}; start one with `launcher up`, or is it in containers? add `--on docker`",
            )
        return paths

    def _status(self, paths: RunPaths) -> RunStatus:
        # Check the lock before reading: a supervisor writes its last state before it releases the lock.
        has_supervisor = locks.held(paths.lock)
        snapshot = _await_snapshot(paths) if has_supervisor else state_file.read(paths.state)
        if snapshot is None:
            reason = f"{paths.state} cannot be read: it is damaged, another user's, or of another version of the launcher"
            state = State.RUNNING if has_supervisor else State.UNKNOWN
            return RunStatus(
                paths.name, self._backend, state, reason=reason, tasks=tuple(TaskStatus(name, state) for name in _logged(paths))
            )
        status = snapshot.status
        if not has_supervisor and status.state not in ENDED:
            status = orphans.interrupted(paths, snapshot)
        notified = delivery.read_outcomes(paths.notified)
        return _with_run_json(dataclasses.replace(status, name=paths.name, notified=notified), paths)

    def _close_lifeline(self, name: str) -> None:
        fd = self._lifelines.pop(name, None)
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)


def _await_snapshot(paths: RunPaths) -> Snapshot | None:
    """Return the state of a supervised run. Wait for a supervisor that is starting to replace an earlier run's state."""
    deadline = time.monotonic() + _FIRST_STATE_TIMEOUT
    while True:
        snapshot = state_file.read(paths.state)
        supervisor = snapshot.supervisor if snapshot else None
        is_elsewhere = snapshot is not None and snapshot.host != socket.gethostname()
        if is_elsewhere or (supervisor is not None and process_identity.alive(supervisor)):
            return snapshot
        if not locks.held(paths.lock) or time.monotonic() >= deadline:
            return state_file.read(paths.state)
        time.sleep(0.02)


def _logged(paths: RunPaths) -> list[str]:
    """Return the tasks that have log files."""
    return sorted(path.stem for path in paths.tasks.glob("*.log")) if files.is_directory(paths.tasks) else []


def _removed(processes: int) -> dict[str, int]:
    return {"process": processes} if processes else {}


def _with_run_json(status: RunStatus, paths: RunPaths) -> RunStatus:
    """Fill in fields that events did not set from the chief's run.json, which for an interrupted run is newer than the events."""
    document = files.read_json(paths.run_json)
    if document is None or status.state == State.PENDING:
        return status
    return run_json.merged(status, document, newer=status.state == State.INTERRUPTED)
