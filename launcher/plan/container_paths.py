"""The paths in containers that a task sees, the same under Docker Compose and on Kubernetes."""

import os
from pathlib import Path

from launcher.plan.models import Target

# The volume of the run directory is mounted here; the image has the directory, owned by the user that tasks run as.
CONTAINER_RUNS = "/runs"
# What is the container's own, and gone with it.
CONTAINER_SCRATCH = "/tmp/trainer"  # noqa: S108 - inside the container it is a file system of the task's own
# The user's code, and a directory with a data set; both read-only.
CONTAINER_CODE = "/code"
CONTAINER_DATA = "/data"
# The parent of a command in an image that has no trainer, where a file can be put there.
CONTAINER_PARENT = "/tf-launcher/parent.py"


def run_dir(target: Target, runs: Path, name: str) -> str:
    """Return the run directory as the tasks of a run see it; `runs` is where this machine keeps those of local runs."""
    return str(runs.absolute() / name) if target == "local" else f"{CONTAINER_RUNS}/{name}"


def data_dir(target: Target, data: str) -> str:
    """Return `train.data` as the tasks see it: Compose mounts a directory of this machine; on Kubernetes it is on a volume."""
    return CONTAINER_DATA if target == "docker" and os.path.isabs(data) else data  # noqa: PTH117 - may be a word or a URL
