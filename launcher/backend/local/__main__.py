"""The supervisor's process of a local run."""

import contextlib
import resource
import sys

from launcher.backend.local.run_processes import controller
from launcher.runs import supervisor_process


def _allow_many_files() -> None:
    """Raise the limit of open files as far as it is allowed: a task takes three."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS allows less than it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    _allow_many_files()
    sys.exit(supervisor_process.main(controller, tasks_survive=False))
