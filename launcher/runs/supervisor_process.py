"""The process that supervises a run: `python -m launcher.backend.BACKEND RUN_DIR --ready-fd N --lock-fd N [--lifeline-fd N]`.

It reports to its launcher, in one JSON line on the ready pipe, that every task was started, or why not.
"""

import argparse
import contextlib
import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path

from launcher.errors import LauncherError, StartInterruptedError
from launcher.files import read_json
from launcher.plan.models import Plan
from launcher.plan.plan_json import from_document
from launcher.runs.os_errors import translate_os_errors
from launcher.runs.paths import RunPaths
from launcher.runs.run_controller import RunController


def main(create_controller: Callable[[RunPaths, Plan, int | None], RunController], *, tasks_survive: bool) -> int:
    """Supervise one run to its end. `tasks_survive`: whether tasks continue if the supervisor itself fails; otherwise it kills them.

    Returns 0 if the run was supervised, whatever its outcome, and 1 if it could not be started.
    """
    options = _options()
    paths = RunPaths(options.run_dir)
    try:
        with translate_os_errors("starting the tasks"):
            controller = create_controller(paths, from_document(read_json(paths.plan) or {}), options.lifeline_fd)
        controller.start()
    except LauncherError as error:
        interrupted = isinstance(error, StartInterruptedError)
        _report(options.ready_fd, {"message": error.message, "remedy": error.remedy, "interrupted": interrupted})
        return 1
    _report(options.ready_fd, {})
    try:
        controller.run()
    except BaseException as error:
        traceback.print_exc()
        if not tasks_survive:
            controller.abort(f"the launcher's supervisor failed: {type(error).__name__}: {error}; {paths.supervisor_log} says where")
        raise
    return 0


def _options() -> argparse.Namespace:
    """Return run_dir, ready_fd, lock_fd and lifeline_fd; make the descriptors not inheritable."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--ready-fd", type=int, required=True)
    parser.add_argument("--lock-fd", type=int, required=True)
    parser.add_argument("--lifeline-fd", type=int)
    options = parser.parse_args()
    for fd in (options.ready_fd, options.lock_fd, options.lifeline_fd):
        if fd is not None:
            os.set_inheritable(fd, False)
    return options


def _report(fd: int, document: dict[str, str | bool]) -> None:
    """Answer on the ready pipe: an empty document if the run has started, else `message`, `remedy`, and whether it was `interrupted`."""
    with contextlib.suppress(OSError):  # the process that started this one is gone
        os.write(fd, json.dumps(document).encode() + b"\n")
    os.close(fd)
