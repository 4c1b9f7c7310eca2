"""The supervisor's process: `python -m launcher.backend.local RUN_DIR --ready-fd N --lock-fd N [--lifeline-fd N]`.

It tells who started it, in one JSON line on the ready pipe, that every task has a process, or why not.
"""

import argparse
import contextlib
import json
import os
import resource
import sys
import traceback
from pathlib import Path

from launcher.backend.local.layout import Layout
from launcher.backend.local.state import read_json
from launcher.backend.local.supervisor import Supervisor
from launcher.backend.local.trouble import explain
from launcher.errors import LauncherError
from launcher.plan.document import from_document


def main(arguments: list[str] | None = None) -> int:
    """Keep one run to its end. Returns 0 when it was kept, however it ended, and 1 when it could not be started."""
    options = _options(arguments)
    for fd in (options.ready_fd, options.lock_fd, options.lifeline_fd):
        if fd is not None:
            os.set_inheritable(fd, False)
    _allow_many_files()
    layout = Layout(options.run_dir)
    supervisor: Supervisor | None = None
    try:
        plan = from_document(read_json(layout.plan) or {})
        supervisor = Supervisor(layout, plan, lifeline=options.lifeline_fd)
        supervisor.start()
    except (OSError, LauncherError) as error:
        trouble = error if isinstance(error, LauncherError) else explain(error, "starting the tasks")
        if supervisor is not None:
            supervisor.abort(trouble.message)
        _tell(options.ready_fd, {"message": trouble.message, "remedy": trouble.remedy})
        return 1
    _tell(options.ready_fd, {})
    try:
        supervisor.run()
    except BaseException as error:
        traceback.print_exc()
        supervisor.abort(f"the launcher's supervisor failed: {type(error).__name__}: {error}; {layout.supervisor_log} says where")
        raise
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="launcher.backend.local", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--ready-fd", type=int, required=True)
    parser.add_argument("--lock-fd", type=int, required=True)
    parser.add_argument("--lifeline-fd", type=int)
    return parser.parse_args(arguments)


def _allow_many_files() -> None:
    """Raise the limit of open files as far as one may: a task takes three."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit than it tells
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _tell(fd: int, document: dict[str, str]) -> None:
    with contextlib.suppress(OSError):  # who started it is gone
        os.write(fd, json.dumps(document).encode() + b"\n")
    os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
