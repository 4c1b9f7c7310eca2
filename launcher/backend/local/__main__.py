"""The supervisor's process: `python -m launcher.backend.local RUN_DIR --ready-fd N --lock-fd N [--lifeline-fd N]`.

It tells who started it, in one JSON line on the ready pipe, that every task has a process, or why not.
"""

import contextlib
import resource
import sys
import traceback

from launcher.backend.local.supervisor import Supervisor
from launcher.errors import LauncherError
from launcher.plan.plan_json import from_document
from launcher.runs.child_process import options, tell
from launcher.runs.os_errors import explain
from launcher.runs.paths import RunPaths
from launcher.runs.state_file import read_json


def main(arguments: list[str] | None = None) -> int:
    """Keep one run to its end. Returns 0 when it was kept, however it ended, and 1 when it could not be started."""
    given = options("launcher.backend.local", arguments)
    _allow_many_files()
    layout = RunPaths(given.run_dir)
    supervisor: Supervisor | None = None
    try:
        plan = from_document(read_json(layout.plan) or {})
        supervisor = Supervisor(layout, plan, lifeline=given.lifeline_fd)
        supervisor.start()
    except (OSError, LauncherError) as error:
        trouble = error if isinstance(error, LauncherError) else explain(error, "starting the tasks")
        if supervisor is not None:
            supervisor.abort(trouble.message)
        tell(given.ready_fd, {"message": trouble.message, "remedy": trouble.remedy})
        return 1
    tell(given.ready_fd, {})
    try:
        supervisor.run()
    except BaseException as error:
        traceback.print_exc()
        supervisor.abort(f"the launcher's supervisor failed: {type(error).__name__}: {error}; {layout.supervisor_log} says where")
        raise
    return 0


def _allow_many_files() -> None:
    """Raise the limit of open files as far as one may: a task takes three."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit than it tells
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
