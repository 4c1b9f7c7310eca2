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
from launcher.notify import outbox
from launcher.runs import locks, orphans, process_identity, run_json, state_file
from launcher.runs.log_merge import merged
from launcher.runs.os_errors import translate_os_errors
from launcher.runs.paths import RunPaths, is_run_name
from launcher.runs.reasons import killed_tasks
from launcher.runs.state_file import Snapshot
from launcher.runs.status import ENDED, Location, LogLine, RunStatus, State, TaskStatus

# How long a stop may take beyond the tasks' own grace periods, of which a parameter-server run has two.
_STOP_SLACK = 20.0
KILL_TIMEOUT = 10.0  # seconds
_FIRST_STATE_TIMEOUT = 10.0  # seconds that a supervisor may take to write its first state


class SupervisedRuns:
    """The runs of one backend, below a directory, that supervisor processes watch over."""

    def __init__(self, runs: Path, backend: str) -> None:
        self._runs = runs.absolute()
        self._backend = backend
        # Supervisors of foreground runs stop their run when these close: with this process, at the latest.
        self._lifelines: dict[str, int] = {}

    def hold_lifeline(self, name: str, lifeline: int | None) -> None:
        """Hold the lifeline of a run in the foreground: it stops when this process ends."""
        self._close_lifeline(name)
        if lifeline is not None:
            self._lifelines[name] = lifeline

    def holds_lifeline(self, name: str) -> bool:
        """Return whether this process holds the lifeline of a run: it follows it in the foreground."""
        return name in self._lifelines

    def status(self, name: str) -> RunStatus:
        """Return the status of the run. Raises UsageError when there is none of that name."""
        paths = self.paths(name)
        if not self._exists(paths) and (lost := self._lost(paths)):
            return lost
        return self._status(self._known(name))

    def _lost(self, paths: RunPaths) -> RunStatus | None:
        """Return the status of a run whose directory was removed while it ran; None where nothing of it is left, nor was it this process's."""
        status = RunStatus(paths.name, self._backend, State.FAILED, run_dir=Location("directory", str(paths.run_dir)), ended=time.time())
        removed = f"{paths.run_dir} was removed while the run ran"
        if paths.name in self._lifelines:
            orphans.wait_until_gone(paths, KILL_TIMEOUT)
            return dataclasses.replace(status, reason=f"{removed}; its tasks were killed")
        if left := orphans.leftover_processes(paths):
            reason = f"{removed}; still running: {left}; `launcher down {paths.name}` ends that"
            return dataclasses.replace(status, state=State.INTERRUPTED, reason=reason)
        return None

    def spec(self, name: str) -> dict[str, Any] | None:
        """Return the spec that the run was started with last, or None."""
        return files.read_json(self.paths(name).spec)

    def runs(self) -> list[RunStatus]:
        """Return the status of every run below the directory, newest first."""
        found: list[RunPaths] = []
        with translate_os_errors("listing the runs"), contextlib.suppress(FileNotFoundError):  # nothing was started yet
            # Others are no runs: `<name>.<time>` is a run that `up --fresh` renamed.
            found = [RunPaths(path) for path in self._runs.iterdir() if is_run_name(path.name) and files.is_directory(path / "launcher")]
        known = [self._status(paths) for paths in found if self._has_run(paths)]
        return sorted(known, key=lambda status: status.started or 0, reverse=True)

    def logs(self, name: str, *, tasks: list[str], follow: bool, since: float | None = None, tail: int | None = None) -> Iterator[LogLine]:
        """Yield the lines of `tasks` (all when empty) in order of time; `tail` counts for each task.

        Raises UsageError at once for a run or task that is not known.
        """
        paths = self._known(name)
        known = [task.name for task in self._status(paths).tasks]
        check_tasks(name, tasks, known)
        stored = {task: paths.log(task) for task in known if not tasks or task in tasks}
        return merged(stored, follow=follow, since=since, tail=tail, ended=lambda: not locks.held(paths.lock))

    def stop(self, name: str, *, now: bool = False, report: Callable[[str], object] = str) -> dict[str, int]:
        """Ask every task to save and stop, or kill at once; return when nothing of the run is left. Idempotent."""
        paths = self.paths(name)
        if not self._exists(paths) and orphans.leftover_processes(paths):
            return _ended(orphans.kill_leftover_processes(paths))
        ran = locks.held(paths.lock)
        left = self._stop(self._known(name), now=now)
        for words in killed_tasks(self.status(name)) if ran and not now else ():
            report(words)
        left += orphans.kill_leftover_processes(paths)
        self._close_lifeline(name)
        return _ended(left)

    def _stop(self, paths: RunPaths, *, now: bool) -> int:
        """Stop the run; return how many of its processes were left without a supervisor."""
        name = paths.name
        if not locks.held(paths.lock):
            return orphans.clear(paths, now=now)
        snapshot = _await_snapshot(paths)
        supervisor = snapshot.supervisor if snapshot else None
        if snapshot is None or supervisor is None or not process_identity.alive(supervisor):
            if not locks.held(paths.lock):
                return 0
            where = snapshot.host if snapshot else "another machine"
            raise LauncherError(
                f"the run {name} is supervised by a process on {where}; this is {socket.gethostname()}",
                f"run `launcher down {name}` there",
            )
        if now or not snapshot.stopping:  # a second SIGTERM kills, so a stop under way is only waited for
            process_identity.send(supervisor.pid, signal.SIGQUIT if now else signal.SIGTERM)
        wait = KILL_TIMEOUT if now else 2 * snapshot.grace_period + _STOP_SLACK
        if not locks.wait_released(paths.lock, timeout=wait):
            process_identity.send(supervisor.pid, signal.SIGKILL)
            locks.wait_released(paths.lock, timeout=KILL_TIMEOUT)
            return orphans.clear(paths, now=True)
        return 0

    def paths(self, name: str) -> RunPaths:
        """Return the paths of the run of that name. Raises UsageError for a text that cannot be a name."""
        if not name or name in {".", ".."} or "/" in name or "\0" in name:
            raise UsageError(f"{name!r} is no name of a run", "list the runs with `launcher ls`")
        return RunPaths(self._runs / name)

    def _has_run(self, paths: RunPaths) -> bool:
        """Return whether a directory has a run of this backend: those of containers were below `runs`/<name> once.

        A run whose state cannot be read counts too, since its data is there.
        """
        snapshot = state_file.read(paths.state)
        return snapshot.status.backend == self._backend if snapshot else state_file.exists(paths.state)

    def _exists(self, paths: RunPaths) -> bool:
        """Return whether a directory has a run, or one that is starting; a start that was refused leaves a directory that has neither."""
        return self._has_run(paths) or locks.held(paths.lock)

    def _known(self, name: str) -> RunPaths:
        paths = self.paths(name)
        if not self._exists(paths):
            known = sorted(status.name for status in self.runs())
            there = (
                f"the runs in {self._runs} are {', '.join(known)}"
                if known
                else f"there are no runs in {self._runs}; --runs names another directory"
            )
            raise UsageError(
                f"there is no run {name}",
                f"{did_you_mean(name, known)}{there}; start one with `launcher up`, or is it in containers? add `--on docker`",
            )
        return paths

    def _status(self, paths: RunPaths) -> RunStatus:
        # The lock is asked first: a supervisor writes its last state before it lets go.
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
        notified = outbox.read_outcomes(paths.notified)
        return _with_summary(dataclasses.replace(status, name=paths.name, notified=notified), paths)

    def _close_lifeline(self, name: str) -> None:
        fd = self._lifelines.pop(name, None)
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)


def _await_snapshot(paths: RunPaths) -> Snapshot | None:
    """Return the state of a supervised run. A supervisor that only starts has not replaced an earlier run's state yet."""
    deadline = time.monotonic() + _FIRST_STATE_TIMEOUT
    while True:
        snapshot = state_file.read(paths.state)
        supervisor = snapshot.supervisor if snapshot else None
        elsewhere = snapshot is not None and snapshot.host != socket.gethostname()
        if elsewhere or (supervisor is not None and process_identity.alive(supervisor)):
            return snapshot
        if not locks.held(paths.lock) or time.monotonic() >= deadline:
            return state_file.read(paths.state)
        time.sleep(0.02)


def _logged(paths: RunPaths) -> list[str]:
    """Return the tasks that have log files."""
    return sorted(path.stem for path in paths.tasks.glob("*.log")) if files.is_directory(paths.tasks) else []


def _ended(processes: int) -> dict[str, int]:
    return {"process": processes} if processes else {}


def _with_summary(status: RunStatus, paths: RunPaths) -> RunStatus:
    """Fill in the fields that events did not tell, from run.json, which the chief writes; of an interrupted run that is newer than the events."""
    facts = files.read_json(paths.run_json)
    if facts is None or status.state == State.PENDING:
        return status
    return run_json.merged(status, facts, newer=status.state == State.INTERRUPTED)
