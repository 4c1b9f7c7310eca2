"""The local backend: the calls behind the CLI's verbs, from the files that supervisors write."""

import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from launcher.backend import archive
from launcher.backend.local import leftovers, locks, processes, starting, state
from launcher.backend.local.layout import Layout
from launcher.backend.local.logs import merged
from launcher.backend.local.state import Snapshot
from launcher.backend.local.trouble import explain
from launcher.backend.model import ENDED, LogLine, RunStatus, State, always
from launcher.backend.stored import PLACES, Part, Stored, nothing
from launcher.errors import LauncherError, UsageError, did_you_mean
from launcher.plan.models import Plan

# How long a stop may take beyond the tasks' own grace periods, of which a parameter-server run has two.
_STOP_SLACK = 20.0
_KILL_WAIT = 10.0
BACKEND = "local"


class LocalBackend:
    """Runs plans as processes of this machine, each below `runs`/<name>. See launcher.backend.model.Backend."""

    def __init__(self, runs: Path, backend: str = BACKEND) -> None:
        self._runs = runs.absolute()
        # Another backend's keepers leave the same files, and are asked to stop in the same way.
        self._backend = backend
        # Supervisors of foreground runs stop their run when these close: with this process, at the latest.
        self._lifelines: dict[str, int] = {}

    def prepare(self, plan: Plan, spec: dict[str, Any]) -> Iterator[str]:
        """Yield nothing: processes need nothing made first."""
        del plan, spec
        return iter(())

    def reserve(self, plan: Plan, spec: dict[str, Any]) -> AbstractContextManager[None]:
        """Do nothing: whoever starts a run from this directory is alone with it."""
        del plan, spec
        return contextlib.nullcontext()

    def start(self, plan: Plan, spec: dict[str, Any], *, detach: bool, wanted: Callable[[], bool] = always) -> None:
        """Start the run; return once every task has a process. Raises UsageError when it runs already."""
        del wanted  # it waits for nothing that was there before
        layout = self.layout(plan.name)
        try:
            leftovers.clear(layout, now=False)
            new, began = not layout.run_dir.exists(), time.time()
            lock_fd = starting.lock(layout)
            try:
                leftovers.await_none(layout, _KILL_WAIT)
                if new:
                    leftovers.remove_returned(layout, began)
                lifeline = starting.start(layout, plan, spec, lock_fd=lock_fd, detach=detach)
            finally:
                os.close(lock_fd)
        except OSError as error:
            raise explain(error, f"starting the run {plan.name}") from error
        self.hold(plan.name, lifeline)

    def hold(self, name: str, lifeline: int | None) -> None:
        """Hold the lifeline of a run in the foreground: it stops when this process ends."""
        self._let_go(name)
        if lifeline is not None:
            self._lifelines[name] = lifeline

    def holds(self, name: str) -> bool:
        """Return whether this process holds the lifeline of a run: it follows it in the foreground."""
        return name in self._lifelines

    def status(self, name: str) -> RunStatus:
        """Tell how the run is. Raises UsageError when there is none of that name."""
        layout = self.layout(name)
        if not self._is_there(layout) and (lost := self._lost(layout)):
            return lost
        return self._status(self._known(name))

    def _lost(self, layout: Layout) -> RunStatus | None:
        """Tell how a run is whose directory was removed while it ran; None where nothing of it is left, nor was it this process's."""
        status = RunStatus(layout.name, self._backend, State.FAILED, run_dir=str(layout.run_dir), ended=time.time())
        removed = f"{layout.run_dir} was removed while the run ran"
        if layout.name in self._lifelines:
            leftovers.await_none(layout, _KILL_WAIT)
            return dataclasses.replace(status, reason=f"{removed}; its tasks were killed")
        if left := leftovers.strays(layout):
            reason = f"{removed}; still running: {left}; `launcher down {layout.name}` ends that"
            return dataclasses.replace(status, state=State.INTERRUPTED, reason=reason)
        return None

    def spec(self, name: str) -> dict[str, Any] | None:
        """Return the spec that the run was started with last, or None."""
        return state.read_json(self.layout(name).spec)

    def tend(self, name: str) -> list[str]:
        """Do nothing: the run's supervisor does it."""
        del name
        return []

    def runs(self) -> list[RunStatus]:
        """Tell of every run below the directory, newest first."""
        try:
            # No run's name has a dot: `<name>.<time>` is what `up --fresh` moved aside.
            found = [Layout(path) for path in self._runs.iterdir() if "." not in path.name and (path / "launcher").is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise explain(error, "listing the runs") from error
        known = [self._status(layout) for layout in found if self._keeps(layout)]
        return sorted(known, key=lambda status: status.started or 0, reverse=True)

    def logs(self, name: str, *, tasks: list[str], follow: bool, since: float | None = None, tail: int | None = None) -> Iterator[LogLine]:
        """Yield the lines of `tasks` (all when empty) in order of time; `tail` counts for each task.

        Raises UsageError at once for a run or task that is not known.
        """
        layout = self._known(name)
        snapshot = state.read(layout.state)
        known = [task.name for task in snapshot.status.tasks] if snapshot else []
        unknown = [task for task in tasks if task not in known]
        if unknown:
            raise UsageError(f"the run {name} has no task {', '.join(unknown)}", f"its tasks are {', '.join(known)}")
        files = {task: layout.log(task) for task in known if not tasks or task in tasks}
        return merged(files, follow=follow, since=since, tail=tail, ended=lambda: not locks.held(layout.lock))

    def stop(self, name: str, *, now: bool = False, tell: Callable[[str], object] = str) -> dict[str, int]:
        """Ask every task to save and stop, or kill at once; return when nothing of the run is left. Idempotent."""
        del tell
        layout = self.layout(name)
        if not self._is_there(layout) and leftovers.strays(layout):
            return _ended(leftovers.end_strays(layout))
        left = self._stop(self._known(name), now=now)
        left += leftovers.end_strays(layout)
        self._let_go(name)
        return _ended(left)

    def _stop(self, layout: Layout, *, now: bool) -> int:
        """Stop the run; return how many processes were left of it that nobody kept."""
        name = layout.name
        if not locks.held(layout.lock):
            return leftovers.clear(layout, now=now)
        snapshot = _await_snapshot(layout)
        supervisor = snapshot.supervisor if snapshot else None
        if snapshot is None or supervisor is None or not processes.alive(supervisor):
            if not locks.held(layout.lock):
                return 0
            where = snapshot.host if snapshot else "another machine"
            raise LauncherError(
                f"the run {name} is kept by a process that is not to be seen from here (on {where}; this is {socket.gethostname()})",
                f"run `launcher down {name}` there",
            )
        processes.send(supervisor.pid, signal.SIGQUIT if now else signal.SIGTERM)
        wait = _KILL_WAIT if now else 2 * snapshot.grace_period + _STOP_SLACK
        if not locks.wait_released(layout.lock, timeout=wait):
            processes.send(supervisor.pid, signal.SIGKILL)
            locks.wait_released(layout.lock, timeout=_KILL_WAIT)
            return leftovers.clear(layout, now=True)
        return 0

    def delete(self, name: str) -> None:
        """Delete the run's directory: checkpoints, logs and all. Raises UsageError while the run is running."""
        layout = self.layout(name)
        if layout.directory.is_dir():
            self._known(name)
        if locks.held(layout.lock):
            raise UsageError(f"the run {name} is running; its data was not deleted", f"stop it first: launcher down {name}")
        leftovers.clear(layout, now=True)
        try:
            if layout.run_dir.exists():
                shutil.rmtree(layout.run_dir)
        except OSError as error:
            raise explain(error, f"deleting the data of {name}") from error

    def set_aside(self, name: str, aside: str) -> str:
        """Rename the run's directory."""
        return str(self.layout(name).set_aside(aside))

    @contextlib.contextmanager
    def fetch(self, name: str, part: Part) -> Iterator[Stored]:
        """Open for a `with` block what the run has stored of a kind. Raises UsageError when there is nothing of it."""
        layout = self._known(name)
        try:
            there = archive.found(layout.run_dir, PLACES)
            if part not in there:
                raise nothing(name, part, there)
            tree = archive.Tree(layout.run_dir / there[part])
        except OSError as error:
            raise explain(error, f"reading the {part} of {name}") from error
        with contextlib.closing(tree):
            yield Stored(str(layout.run_dir / there[part]), tree.stream(), tree.size)

    def tensorboard(self, name: str, *, host: str | None, port: int | None) -> None:
        """Serve nothing: the logs are in a directory of this machine."""
        del name, host, port

    def layout(self, name: str) -> Layout:
        """Return where the run of that name is kept. Raises UsageError for what cannot be a name."""
        if not name or name in {".", ".."} or "/" in name or "\0" in name:
            raise UsageError(f"{name!r} is no name of a run", "list the runs with `launcher ls`")
        return Layout(self._runs / name)

    def _keeps(self, layout: Layout) -> bool:
        """Return whether a directory has a run of this backend: those of containers were below `runs`/<name> once."""
        snapshot = state.read(layout.state)
        return snapshot is not None and snapshot.status.backend == self._backend

    def _is_there(self, layout: Layout) -> bool:
        """Return whether a directory has a run, or one that is starting; a start that was refused leaves a directory that has neither."""
        return self._keeps(layout) or locks.held(layout.lock)

    def _known(self, name: str) -> Layout:
        layout = self.layout(name)
        if not self._is_there(layout):
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
        return layout

    def _status(self, layout: Layout) -> RunStatus:
        # The lock is asked first: a supervisor writes its last state before it lets go.
        kept = locks.held(layout.lock)
        snapshot = _await_snapshot(layout) if kept else state.read(layout.state)
        if snapshot is None:
            raise LauncherError(f"{layout.state} cannot be read", f"start the run {layout.name} again, or remove {layout.run_dir}")
        status = snapshot.status
        if not kept and status.state not in ENDED:
            status = leftovers.interrupted(layout, snapshot)
        # A run's directory may have been moved aside or copied since; other backends store elsewhere what a run makes.
        if self._backend == BACKEND:
            status = dataclasses.replace(status, run_dir=str(layout.run_dir), model=_model(layout))
        status = _with_summary(dataclasses.replace(status, name=layout.name), layout)
        if self._backend == BACKEND and status.checkpoint is not None:
            checkpoint = layout.run_dir / PLACES[Part.CHECKPOINTS][0] / Path(status.checkpoint).name
            status = dataclasses.replace(status, checkpoint=str(checkpoint))
        return status

    def _let_go(self, name: str) -> None:
        fd = self._lifelines.pop(name, None)
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)


def _await_snapshot(layout: Layout, *, timeout: float = 10.0) -> Snapshot | None:
    """Return the state of a run that is kept. A supervisor that only starts has not replaced an earlier run's state yet."""
    deadline = time.monotonic() + timeout
    while True:
        snapshot = state.read(layout.state)
        keeper = snapshot.supervisor if snapshot else None
        elsewhere = snapshot is not None and snapshot.host != socket.gethostname()
        if elsewhere or (keeper is not None and processes.alive(keeper)):
            return snapshot
        if not locks.held(layout.lock) or time.monotonic() >= deadline:
            return state.read(layout.state)
        time.sleep(0.02)


def _ended(processes: int) -> dict[str, int]:
    return {"process": processes} if processes else {}


def _model(layout: Layout) -> str | None:
    """Return where the run's exported model is, None where it has none."""
    return next((str(layout.run_dir / place) for place in PLACES[Part.MODEL] if (layout.run_dir / place).is_dir()), None)


# Field of RunStatus -> its name in run.json and its type there.
_SUMMARY: dict[str, tuple[str, type]] = {
    "step": ("step", int),
    "steps": ("steps", int),
    "metrics": ("metrics", dict),
    "checkpoint": ("checkpoint", str),
    "ended_early": ("ended_early", str),
}


def _with_summary(status: RunStatus, layout: Layout) -> RunStatus:
    """Fill in what events did not tell from run.json, which the chief writes; of an interrupted run it tells the last."""
    summary = state.read_json(layout.summary)
    if summary is None or status.state == State.PENDING:
        return status
    newer = status.state == State.INTERRUPTED
    told = {
        field: summary[key]
        for field, (key, kind) in _SUMMARY.items()
        if isinstance(summary.get(key), kind) and (newer or not getattr(status, field))
    }
    if "metrics" in told:  # the chief records those of evaluations alone
        told["metrics_of"] = "evaluation"
    if "checkpoint" in told:  # checkpoints are named by their step
        step = told["checkpoint"].rpartition("-")[2]
        told["checkpoint_step"] = int(step) if step.isdecimal() else None
    return dataclasses.replace(status, **told)
