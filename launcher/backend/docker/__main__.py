"""The supervisor's process of a run of containers; these go on without it, and anyone who asks how the run is looks at them."""

import sys

from launcher.backend.docker.run_containers import controller
from launcher.runs import supervisor_process

if __name__ == "__main__":
    sys.exit(supervisor_process.main(controller, tasks_survive=True))
