"""The paths in containers that a task sees. A path that both Docker Compose and Kubernetes mount is the same under both."""

# The volume of the run directory is mounted here; the image has the directory, owned by the user that tasks run as.
CONTAINER_RUNS = "/runs"
# The container's own temporary files.
CONTAINER_SCRATCH = "/tmp/trainer"  # noqa: S108 - inside the container it is a file system of the task's own
# The user's code, and, only under Compose, a directory with a data set; both read-only.
CONTAINER_CODE = "/code"
CONTAINER_DATA = "/data"
# The trainer's parent for a command in an image without the trainer, on Kubernetes.
CONTAINER_PARENT = "/tf-launcher/parent.py"
