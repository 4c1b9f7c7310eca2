"""The order in which tasks are asked to stop once a run ends, by strategy and role. Pure.

When a run's work is done, its other tasks get time to end by themselves: the trainer's servers do, a user's servers never do.
When a run is stopped, the tasks that save a checkpoint are asked first, and the servers, which hold the variables, second.
"""

import json

from launcher.plan.models import Plan, Task
from trainer.strategies import is_server

# Seconds: a run that has not begun to train has nothing to save.
UNTRAINED_GRACE_PERIOD = 5.0


def runs_trainer(task: Task) -> bool:
    """Return whether the task runs the built-in trainer, which reports when it is ready, and not a user's own command."""
    try:
        settings = json.loads(task.env.get("TRAINER_SETTINGS", "{}"))
    except ValueError:
        return False
    return isinstance(settings, dict) and settings.get("train") is not None


def time_to_end(plan: Plan, task: Task) -> float:
    """Return the seconds that a task gets to end by itself once the run's work is done."""
    return plan.grace_period if runs_trainer(task) else plan.end_timeouts.get(task.role, plan.grace_period)


def stop_groups(plan: Plan) -> list[frozenset[str]]:
    """Return the groups of tasks in the order in which they are asked to stop: each group once the one before has ended."""
    all_tasks = frozenset(task.name for task in plan.tasks)
    servers = frozenset(task.name for task in plan.tasks if is_server(plan.strategy, task.role))
    return [all_tasks - servers, servers] if servers else [all_tasks]
