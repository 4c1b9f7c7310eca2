"""The rules that follow from strategy and role alone: restart rules, who mounts the run directory, whose success is the run's.

Source: docs/architecture.md, "Who restarts what", and the storage contract: only the chief writes, and the evaluator what it evaluated.
"""

import posixpath
from collections.abc import Iterable, Sequence

from launcher.plan.container_paths import CONTAINER_PARENT
from launcher.plan.models import Plan, RoleName, Task
from trainer.strategies import SERVER_STRATEGIES, STRATEGIES, Scope

# The order in which tasks are listed, numbered and given their share of scarce things.
ROLE_ORDER: tuple[RoleName, ...] = ("chief", "worker", "ps", "evaluator")

# Roles of which there is one, whose task goes without an index.
SINGLE_TASK_ROLES: frozenset[RoleName] = frozenset({"chief", "evaluator"})

# How the trainer is started inside our image.
TRAINER = ("python", "-P", "-m", "trainer")

# How its parent is started in an image that has Python and not the trainer, before `-- COMMAND`: nothing of the image but the standard
# library is imported. launcher/render/parent_file.py makes the file, and what Compose has of it in a variable: it mounts no file whose
# text stands in the Compose file into a container with a root file system that is read-only.
_PYTHON = ("python3", "-I", "-S")
_FROM_VARIABLE = "import base64,os,zlib;exec(zlib.decompress(base64.b64decode(os.environ.pop('TRAINER_PARENT'))))"
PARENT_IN_VARIABLE = (*_PYTHON, "-c", _FROM_VARIABLE)
PARENT_IN_FILE = (*_PYTHON, CONTAINER_PARENT)
_PARENTS = (PARENT_IN_VARIABLE, PARENT_IN_FILE)

# The reason and the remedy where a container could not start the parent.
NO_PYTHON = "its image has no python3, under which a `command` runs"
NO_PYTHON_REMEDY = "take an image with Python 3.8 or later, or write `supervise: false`"


def has_parent(task: Task) -> bool:
    """Return whether the trainer's parent runs in a task's container: above the training process, or above a program."""
    return not task.is_entrypoint and has_trainer(task.command)


def parent_is_injected(task: Task) -> bool:
    """Return whether the parent of a task's program is not of its image, but comes with the run."""
    return not task.is_entrypoint and _is_parent(task.command)


def can_report_end(plan: Plan) -> bool:
    """Return whether the tasks of a user's program can ask others whether its run has ended: the required ones have a parent."""
    return all(has_parent(task) for task in plan.tasks if task.name in plan.required_tasks)


def has_trainer(command: Sequence[str]) -> bool:
    """Return whether what a container runs is the trainer, or a program under it: it reports the task's state, and restarts what ended."""
    return _starts_with(command, TRAINER) or _is_parent(command)


def _is_parent(command: Sequence[str]) -> bool:
    return any(_starts_with(command, parent) for parent in _PARENTS)


def readable(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command as people read it: how a parent gets into a container is not what they look for."""
    parent = next((parent for parent in _PARENTS if _starts_with(command, parent)), ())
    return ("python3", posixpath.basename(CONTAINER_PARENT), *command[len(parent) :]) if parent else tuple(command)


def _starts_with(command: Sequence[str], words: tuple[str, ...]) -> bool:
    return tuple(command[: len(words)]) == words


def task_name(role: RoleName, index: int) -> str:
    """Return how a task is called: `chief`, `evaluator`, `worker-0`, `ps-1`."""
    return role if role in SINGLE_TASK_ROLES else f"{role}-{index}"


def restart_scope(strategy: str, role: RoleName) -> Scope:
    """Return which tasks start again when a task of `role` ends early; `alone` where the table has no row."""
    return next((kind.restarts.get(role, "alone") for name, kind in STRATEGIES.items() if name == strategy), "alone")


def leader(names: Iterable[str]) -> str:
    """Return the leader: the chief, or worker-0 where there is none."""
    return "chief" if "chief" in set(names) else "worker-0"


def graces(strategy: str, *, worker: float, evaluator: float, peer: float) -> dict[RoleName, float]:
    """Return the seconds that a user's own program gets in each role to end by itself once the run has succeeded.

    `worker` is for one of parameter servers, `peer` for one of an all-reduce; a ps never ends by itself.
    """
    of_workers = worker if strategy in SERVER_STRATEGIES else peer
    return {"chief": of_workers, "worker": of_workers, "ps": 0.0, "evaluator": evaluator}


def leading_role_name(names: Iterable[str]) -> str:
    """Return the role of the leader, by the names of tasks or of roles."""
    return leader(names).partition("-")[0]


def mounts_run_dir(name: str, *, leader: str) -> bool:
    """Return whether the trainer needs the run directory in a task: in the leader, and in the evaluator."""
    return name in {leader, "evaluator"}


def required_tasks(names: Iterable[str], *, is_command: bool = False, success: str = "chief") -> tuple[str, ...]:
    """Return the tasks whose success the run needs: the leader, and the trainer's own evaluator (that of a user's program may never end).

    For a user's own program `success` says whether it is the leader alone, or all workers too.
    """
    known = list(names)
    others = [] if is_command else ["evaluator"]
    if success == "all_workers":
        others += [name for name in known if name.startswith("worker-") and name != leader(known)]
    return tuple(name for name in (leader(known), *others) if name in known)
