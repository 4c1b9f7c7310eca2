"""Paths of a run on this machine: the files below `runs/<name>/`, or `runs/.docker/<name>/` for one of containers."""

import re
import shutil
from pathlib import Path

from launcher.errors import LauncherError

# Directories below the runs directory for this machine's files about runs in containers and on clusters. No run can have such a name.
DOCKER_STATE_DIR, KUBERNETES_STATE_DIR = ".docker", ".kubernetes"
# In <KUBERNETES_STATE_DIR>/<context>/<namespace>/<run>: this machine has started the run there.
START_FILE = "place.json"
_RUN_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\Z")


def is_run_name(name: str) -> bool:
    """Return whether a run may have this name. Names become paths, also of directories that are deleted, so `..` must never pass."""
    return _RUN_NAME.match(name) is not None


class RunPaths:
    """The paths of one run, whose directory is `run_dir`."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.name = run_dir, run_dir.name
        self.run_json = run_dir / "run.json"  # the chief's last record of the run
        self.launcher_dir = own = run_dir / "launcher"  # the launcher's own files
        self.spec = own / "spec.json"  # the spec the run was last started from
        self.plan = own / "plan.json"  # with the addresses in use
        self.compose = own / "compose.yaml"  # of a run of containers
        self.state = own / "state.json"  # the supervisor's last state; replaced atomically
        self.lock = own / "lock"  # locked as long as a supervisor lives
        self.supervisor_log = own / "supervisor.log"  # for people
        self.notified = own / "notified.jsonl"  # the outcomes of messages to people, one JSON object per line
        self.scratch = own / "scratch"  # the directory of servers' stop files
        self.tasks = own / "tasks"  # the directory of the tasks' logs

    def rename(self, new_name: str) -> Path:
        """Rename the run's directory to `new_name`, in the same parent, and return its path. Raises LauncherError if that fails."""
        try:
            return self.run_dir.rename(self.run_dir.with_name(new_name))
        except OSError as error:
            raise LauncherError(
                f"{self.run_dir} cannot be renamed: {error.strerror}", "see which user owns it, and which process uses it"
            ) from error

    def delete(self) -> None:
        """Delete the run's directory, if there is one, and the link if it is one. Raises OSError if that fails."""
        if self.run_dir.exists():
            shutil.rmtree(self.run_dir.resolve())  # rmtree refuses links
        if self.run_dir.is_symlink():
            self.run_dir.unlink()

    def stacks_socket(self, task: str) -> Path:
        """Return the socket at which a task's parent serves its stacks."""
        return self.tasks / f"{task}.sock"

    def log(self, task: str) -> Path:
        """Return the log file of one task."""
        return self.tasks / f"{task}.log"
