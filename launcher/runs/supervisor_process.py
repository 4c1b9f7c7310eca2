"""The process that supervises a run: `python -m launcher.backend.BACKEND RUN_DIR --ready-fd N --lock-fd N [--lifeline-fd N]`.

It tells its launcher, in one JSON line on the ready pipe, that every task was started, or why not.
"""

import argparse
import contextlib
import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path

from launcher.errors import LauncherError
from launcher.files import read_json
from launcher.plan.models import Plan
from launcher.plan.plan_json import from_document
from launcher.runs.os_errors import explain
from launcher.runs.paths import RunPaths
from launcher.runs.run_controller import RunController


def main(make: Callable[[RunPaths, Plan, int | None], RunController], *, tasks_survive: bool) -> int:
    """Supervise one run to its end. `make` makes its controller from the lifeline; if it fails, tasks continue where `outlived`, else they are killed.

    Returns 0 when the run was supervised, however it ended, and 1 when it could not be started.
    """
    given = _options()
    paths = RunPaths(given.run_dir)
    try:
        controller = make(paths, from_document(read_json(paths.plan) or {}), given.lifeline_fd)
        controller.start()
    except (OSError, LauncherError) as error:
        problem = error if isinstance(error, LauncherError) else explain(error, "starting the tasks")
        _report(given.ready_fd, {"message": problem.message, "remedy": problem.remedy})
        return 1
    _report(given.ready_fd, {})
    try:
        controller.run()
    except BaseException as error:
        traceback.print_exc()
        if not tasks_survive:
            controller.abort(f"the launcher's supervisor failed: {type(error).__name__}: {error}; {paths.supervisor_log} says where")
        raise
    return 0


def _options() -> argparse.Namespace:
    """Return run_dir, ready_fd, lock_fd and lifeline_fd; what this process starts inherits none of the files."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--ready-fd", type=int, required=True)
    parser.add_argument("--lock-fd", type=int, required=True)
    parser.add_argument("--lifeline-fd", type=int)
    given = parser.parse_args()
    for fd in (given.ready_fd, given.lock_fd, given.lifeline_fd):
        if fd is not None:
            os.set_inheritable(fd, False)
    return given


def _report(fd: int, document: dict[str, str]) -> None:
    """Answer on the ready pipe: nothing when all is well, else `message` and `remedy`."""
    with contextlib.suppress(OSError):  # the process that started this one is gone
        os.write(fd, json.dumps(document).encode() + b"\n")
    os.close(fd)
