"""The labels of a run's containers, networks and volumes: to find these again, and to store parts of the plan."""

from launcher.plan.models import Plan, Task

PREFIX = "tf-launcher."
RUN = f"{PREFIX}run"
STRATEGY = f"{PREFIX}strategy"
DIGEST = f"{PREFIX}spec-digest"
GRACE = f"{PREFIX}grace-period"
TASK = f"{PREFIX}task"
REQUIRED = f"{PREFIX}decisive"  # true if the run needs the success of this task
SERVICE = f"{PREFIX}service"  # a service that is not a task, e.g. TensorBoard
TENSORBOARD = "tensorboard"  # the name of its service
SIDECAR_OF = f"{PREFIX}sidecar-of"  # the task of a sidecar
SCRATCH = f"{PREFIX}scratch-of"  # a volume that begins empty with each start of a run


def of_run(plan: Plan) -> dict[str, str]:
    """Return the labels of everything that belongs to a run."""
    return {RUN: plan.name, STRATEGY: plan.strategy, DIGEST: plan.spec_digest, GRACE: f"{plan.grace_period:g}"}


def of_task(plan: Plan, task: Task) -> dict[str, str]:
    """Return the labels of one task's container, beside those of the run."""
    return {TASK: task.name, REQUIRED: "true" if task.name in plan.required_tasks else "false"}
