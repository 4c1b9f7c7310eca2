"""Paths of a run on this machine: the files below `runs/<name>/`, or `runs/.docker/<name>/` for one of containers."""

from dataclasses import dataclass
from pathlib import Path

from launcher.errors import LauncherError

# Below the runs directory, where this machine stores what it knows of runs in containers and on clusters: no run has such a name.
OF_CONTAINERS, OF_CLUSTERS = ".docker", ".kubernetes"


@dataclass(frozen=True)
class RunPaths:
    """The paths of one run."""

    run_dir: Path

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run_dir.name

    @property
    def directory(self) -> Path:
        """The launcher's own files."""
        return self.run_dir / "launcher"

    @property
    def spec(self) -> Path:
        """The spec the run was last started from, as JSON."""
        return self.directory / "spec.json"

    @property
    def plan(self) -> Path:
        """The plan with the addresses in use."""
        return self.directory / "plan.json"

    @property
    def state(self) -> Path:
        """The supervisor's last state; replaced atomically."""
        return self.directory / "state.json"

    @property
    def lock(self) -> Path:
        """Locked as long as a supervisor lives."""
        return self.directory / "lock"

    @property
    def supervisor_log(self) -> Path:
        """The supervisor's own log, for people."""
        return self.directory / "supervisor.log"

    @property
    def notified(self) -> Path:
        """The outcomes of messages to people, a line of JSON each."""
        return self.directory / "notified.jsonl"

    @property
    def scratch(self) -> Path:
        """The directory of servers' stop files."""
        return self.directory / "scratch"

    @property
    def summary(self) -> Path:
        """The chief's last record of the run."""
        return self.run_dir / "run.json"

    @property
    def tasks(self) -> Path:
        """The directory of the tasks' logs."""
        return self.directory / "tasks"

    def set_aside(self, aside: str) -> Path:
        """Rename the run's directory to `aside`, beside it, and return it. Raises LauncherError when that cannot be done."""
        try:
            return self.run_dir.rename(self.run_dir.with_name(aside))
        except OSError as error:
            raise LauncherError(
                f"{self.run_dir} cannot be moved aside: {error.strerror}", "see which user owns it, and which process uses it"
            ) from error

    def stacks_socket(self, task: str) -> Path:
        """Return the socket on which a task's parent is asked for its stacks."""
        return self.tasks / f"{task}.sock"

    def log(self, task: str) -> Path:
        """Return the log file of one task."""
        return self.tasks / f"{task}.log"
