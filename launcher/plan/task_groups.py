"""The tasks of a plan by role, each with the fields that all tasks of the role share. Pure."""

from dataclasses import dataclass

from launcher.plan.models import Plan, RoleName, Task
from trainer.strategies import Scope


@dataclass(frozen=True)
class TaskGroup:
    """The tasks of one role, which differ only in their index. `first_task` stands for all."""

    role: RoleName
    count: int
    first_task: Task
    # Whether a task needs the run directory; then all have it, as they share a pod template.
    mounts_run_dir: bool
    # Whether at least one of them is a required task.
    required: bool

    @property
    def scope(self) -> Scope:
        """The tasks that restart when one of them ends early."""
        return self.first_task.restart.scope


def groups(plan: Plan) -> tuple[TaskGroup, ...]:
    """Return the plan's roles in the order of its tasks."""
    by_role: dict[RoleName, list[Task]] = {}
    for task in plan.tasks:
        by_role.setdefault(task.role, []).append(task)
    return tuple(
        TaskGroup(
            role=role,
            count=len(tasks),
            first_task=tasks[0],
            mounts_run_dir=any(task.mounts_run_dir for task in tasks),
            required=any(task.name in plan.required_tasks for task in tasks),
        )
        for role, tasks in by_role.items()
    )
