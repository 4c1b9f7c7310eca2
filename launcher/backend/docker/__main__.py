"""The keeper's process: `python -m launcher.backend.docker RUN_DIR --ready-fd N --lock-fd N [--lifeline-fd N]`.

It tells who started it, in one JSON line on the ready pipe, that every container was started, or why not.
"""

import sys
import traceback

from launcher.backend.docker.engine import Engine, endpoint
from launcher.backend.docker.supervisor import Keeper
from launcher.errors import LauncherError
from launcher.plan.plan_json import from_document
from launcher.runs.child_process import options, tell
from launcher.runs.os_errors import explain
from launcher.runs.paths import RunPaths
from launcher.runs.state_file import read_json


def main(arguments: list[str] | None = None) -> int:
    """Keep one run to its end. Returns 0 when it was kept, however it ended, and 1 when it could not be started."""
    given = options("launcher.backend.docker", arguments)
    layout = RunPaths(given.run_dir)
    try:
        keeper = Keeper(layout, from_document(read_json(layout.plan) or {}), Engine(endpoint()))
        keeper.listen(given.lifeline_fd)
        keeper.start()
    except (OSError, LauncherError) as error:
        trouble = error if isinstance(error, LauncherError) else explain(error, "starting the containers")
        tell(given.ready_fd, {"message": trouble.message, "remedy": trouble.remedy})
        return 1
    tell(given.ready_fd, {})
    try:
        keeper.run()
    except BaseException:
        # The containers go on: anyone who asks next looks at them.
        traceback.print_exc()
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
