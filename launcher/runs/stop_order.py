"""The end of a run, and the order in which its tasks are asked to stop, by strategy and role. Pure.

When a run's work is done, its other tasks get time to end by themselves: the trainer's servers do, a user's servers never do.
When a run is stopped, the tasks that save a checkpoint are asked first, and the servers, which hold the variables, second.
"""

import json
from dataclasses import dataclass, field

from launcher.plan.models import Plan, Task
from launcher.runs.status import State
from trainer.strategies import is_server

# Seconds: a run that has not begun to train has nothing to save.
UNTRAINED_GRACE_PERIOD = 5.0


@dataclass
class Shutdown:
    """The end of the run, once it is decided, and the tasks that are still to be stopped. `grace` in seconds."""

    state: State
    reason: str
    task: str = ""  # the task whose reason it is, if it is a task's
    grace: float = 0.0
    remaining_groups: list[frozenset[str]] = field(default_factory=list)  # not asked to stop yet, see `stop_groups`
    stopping_group: frozenset[str] = frozenset()  # the group that was asked last; the next one is asked once these tasks have ended
    at_once: bool = False  # a second request, or SIGQUIT: kill without a grace period


def runs_built_in_trainer(task: Task) -> bool:
    """Return whether the task runs the built-in trainer, which reports when it is ready, and not a user's own command."""
    try:
        settings = json.loads(task.env.get("TRAINER_SETTINGS", "{}"))
    except ValueError:
        return False
    return isinstance(settings, dict) and settings.get("train") is not None


def end_grace(plan: Plan, task: Task) -> float:
    """Return the seconds that a task gets to end by itself once the run's work is done."""
    return plan.grace_period if runs_built_in_trainer(task) else plan.end_grace_periods.get(task.role, plan.grace_period)


def stop_groups(plan: Plan) -> list[frozenset[str]]:
    """Return the groups of tasks in the order in which they are asked to stop: each group once the one before has ended."""
    all_tasks = frozenset(task.name for task in plan.tasks)
    servers = frozenset(task.name for task in plan.tasks if is_server(plan.strategy, task.role))
    return [all_tasks - servers, servers] if servers else [all_tasks]
