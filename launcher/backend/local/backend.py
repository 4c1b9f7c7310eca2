"""The local backend: runs as processes of this machine."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.backend.model import PlannedRun
from launcher.errors import UsageError
from launcher.files import is_directory
from launcher.runs import archive, locks, orphans, spawn
from launcher.runs.artifacts import ARTIFACT_DIRECTORIES, Artifact, ArtifactStream, missing_artifact_error, still_running_error
from launcher.runs.os_errors import translate_os_errors
from launcher.runs.paths import RunPaths
from launcher.runs.status import Location, RunStatus
from launcher.runs.supervised_runs import KILL_TIMEOUT, SupervisedRuns

if TYPE_CHECKING:
    from trainer.stacks import ProcessStacks

BACKEND = "local"
_SUPERVISOR = "launcher.backend.local"
# Entries of a run's directory that was copied here without `launcher/`, or of a mounted disk: a run may start in a directory with only these.
_RUN_ENTRIES = frozenset({"checkpoints", "logs", "evaluations.json", "export", "results", "backup", "run.json", "lost+found"})


class LocalBackend(SupervisedRuns):
    """Runs plans as processes of this machine, each below `runs`/<name>. See launcher.backend.model.Backend."""

    def __init__(self, runs: Path) -> None:
        super().__init__(runs, BACKEND)

    def start(self, run: PlannedRun, *, is_cancelled: Callable[[], bool] | None = None) -> None:
        """Start the run; return once every task has a process. Raises UsageError if the run is already running."""
        paths, name = self.paths(run.plan.name), run.plan.name
        with translate_os_errors(f"starting the run {name}"):
            _check_directory(paths)
            orphans.clear(paths, now=False)
            is_new, started = not paths.run_dir.exists(), time.time()
            lock_fd = spawn.lock(paths)
            try:
                if remaining := orphans.wait_until_gone(paths, KILL_TIMEOUT):
                    raise UsageError(
                        f"tasks of an earlier run {name} in {paths.run_dir} still run: {remaining}",
                        f"end them with `launcher down {name}`, then try again",
                    )
                if is_new:
                    orphans.remove_recreated(paths, started)
                lifeline = spawn.start(paths, run.plan, run.spec, lock_fd=lock_fd, is_cancelled=is_cancelled, supervisor=_SUPERVISOR)
            finally:
                os.close(lock_fd)
        self.hold_lifeline(name, lifeline)

    def stacks(self, name: str, task: str) -> "tuple[ProcessStacks, ...]":
        """Return the current Python stacks of a task's processes. Raises LauncherError if no process can be asked for them."""
        from launcher.runs import task_stacks

        return task_stacks.from_socket(task, self._existing(name).stacks_socket(task))

    def delete(self, name: str) -> None:
        """Delete the run's directory: checkpoints, logs and all. Raises UsageError while the run is running."""
        paths = self.paths(name)
        if paths.launcher_dir.is_dir():
            self._existing(name)
        if locks.held(paths.lock):
            raise still_running_error(name, BACKEND)
        orphans.clear(paths, now=True)
        with translate_os_errors(f"deleting the data of {name}"):
            paths.delete()

    def rename(self, name: str, new_name: str) -> tuple[Location, ...]:
        """Rename the run's directory."""
        return (Location("directory", str(self.paths(name).rename(new_name))),)

    @contextlib.contextmanager
    def fetch(self, name: str, artifact: Artifact) -> Iterator[ArtifactStream]:
        """Open an artifact of the run for a `with` block. Raises UsageError if there is none."""
        paths = self._existing(name)
        with translate_os_errors(f"reading the {artifact} of {name}"):
            existing = archive.existing_paths(paths.run_dir, ARTIFACT_DIRECTORIES)
            if artifact not in existing:
                raise missing_artifact_error(name, artifact, existing)
            opened = archive.OpenFiles(paths.run_dir / existing[artifact])
        with contextlib.closing(opened):
            yield ArtifactStream(str(paths.run_dir / existing[artifact]), opened.stream(), opened.size)

    def _status(self, paths: RunPaths) -> RunStatus:
        """Return the status of a run, with its current paths: its directory may have been renamed or copied."""
        status = super()._status(paths)
        checkpoint = status.checkpoint and str(paths.run_dir / ARTIFACT_DIRECTORIES[Artifact.CHECKPOINTS][0] / Path(status.checkpoint).name)
        return dataclasses.replace(status, run_dir=Location("directory", str(paths.run_dir)), model=_model(paths), checkpoint=checkpoint)


def _check_directory(paths: RunPaths) -> None:
    """Raise UsageError if the run's directory was not created by a run and has other files: they would be deleted with the run's data."""
    if paths.launcher_dir.exists() or not paths.run_dir.exists():
        return
    if others := sorted(path.name for path in paths.run_dir.iterdir() if path.name not in _RUN_ENTRIES and not path.name.startswith(".")):
        raise UsageError(
            f"{paths.run_dir} would be the run's directory, and has files that are not of a run: {', '.join(others[:5])}",
            "add --fresh to have the directory renamed, give the run another `name`, or choose another directory for runs with --runs",
        )


def _model(paths: RunPaths) -> str | None:
    """Return the directory of the run's exported model, None if it has none."""
    candidates = (paths.run_dir / directory for directory in ARTIFACT_DIRECTORIES[Artifact.MODEL])
    return next(map(str, filter(is_directory, candidates)), None)
