"""The supervisor's process of a run of containers. The containers continue without it; the run's status is then read from them."""

import sys

from launcher.backend.docker.run_containers import controller
from launcher.runs import supervisor_process

if __name__ == "__main__":
    sys.exit(supervisor_process.main(controller, tasks_survive=True))
