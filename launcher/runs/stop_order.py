"""The order in which tasks are asked to stop once a run ends, by strategy and role. Pure.

A run that is done leaves its other tasks time to end by themselves: the trainer's servers do, a user's servers never.
In a run that is stopped, the tasks that save a checkpoint are asked first. Servers, which hold the variables until then, come second.
"""

import json

from launcher.plan.models import Plan, Task
from trainer.strategies import is_server

# A run that never got to train has nothing to save.
UNTRAINED_GRACE_PERIOD = 5.0


def runs_trainer(task: Task) -> bool:
    """Return whether the task runs the built-in trainer, which says when it is ready; a user's own command does not."""
    try:
        settings = json.loads(task.env.get("TRAINER_SETTINGS", "{}"))
    except ValueError:
        return False
    return isinstance(settings, dict) and settings.get("train") is not None


def time_to_end(plan: Plan, task: Task) -> float:
    """Return the seconds that a task gets to end by itself once the run's work is done."""
    return plan.grace_period if runs_trainer(task) else plan.graces.get(task.role, plan.grace_period)


def stop_groups(plan: Plan) -> list[frozenset[str]]:
    """Return the tasks in the order they are asked to stop; a later group only once the one before has ended."""
    everyone = frozenset(task.name for task in plan.tasks)
    servers = frozenset(task.name for task in plan.tasks if is_server(plan.strategy, task.role))
    return [everyone - servers, servers] if servers else [everyone]
