"""The rules that depend only on strategy and role: restarts, the tasks that mount the run directory, the required tasks.

Source: docs/architecture.md, "Who restarts what" and "Run directory": only the chief writes there, and the evaluator its results.
"""

import posixpath
from collections.abc import Iterable, Sequence

from launcher.plan.container_paths import CONTAINER_PARENT
from launcher.plan.models import Plan, RoleName, Task
from trainer.strategies import SERVER_STRATEGIES, STRATEGIES, Scope

# The order in which tasks are listed, numbered and given scarce resources such as GPUs.
ROLE_ORDER: tuple[RoleName, ...] = ("chief", "worker", "ps", "evaluator")

# Roles with a single task, whose name has no index.
SINGLE_TASK_ROLES: frozenset[RoleName] = frozenset({"chief", "evaluator"})

# The trainer's command in our image.
TRAINER_COMMAND = ("python", "-P", "-m", "trainer")

# The command of the trainer's parent in an image that has Python but not the trainer; `-- COMMAND` follows it. It imports only the
# image's standard library. launcher/render/parent_file.py creates the file. Compose has its text in a variable instead, because it cannot
# mount a file with inline content into a container with a read-only root file system.
_PYTHON = ("python3", "-I", "-S")
_FROM_VARIABLE = "import base64,os,zlib;exec(zlib.decompress(base64.b64decode(os.environ.pop('TRAINER_PARENT'))))"
PARENT_IN_VARIABLE = (*_PYTHON, "-c", _FROM_VARIABLE)
PARENT_IN_FILE = (*_PYTHON, CONTAINER_PARENT)
_PARENTS = (PARENT_IN_VARIABLE, PARENT_IN_FILE)

# The reason and the remedy if a container could not start the parent.
NO_PYTHON = "its image has no python3, under which a `command` runs"
NO_PYTHON_REMEDY = "take an image with Python 3.8 or later, or write `supervise: false`"


def has_parent(task: Task) -> bool:
    """Return whether the trainer's parent runs in a task's container: above the training process, or above a program."""
    return not task.is_entrypoint and starts_parent(task.command)


def parent_is_injected(task: Task) -> bool:
    """Return whether the run supplies the parent of a task's program, which its image lacks."""
    return not task.is_entrypoint and _is_parent(task.command)


def can_report_end(plan: Plan) -> bool:
    """Return whether the tasks of a user's program can ask others whether the run has ended: all required tasks have a parent."""
    return all(has_parent(task) for task in plan.tasks if task.name in plan.required_tasks)


def starts_parent(command: Sequence[str]) -> bool:
    """Return whether a command starts the trainer, or a program under its parent, which reports the task's state and restarts processes."""
    return _starts_with(command, TRAINER_COMMAND) or _is_parent(command)


def _is_parent(command: Sequence[str]) -> bool:
    return any(_starts_with(command, parent) for parent in _PARENTS)


def readable_command(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command for people, with a short form of how the parent is started."""
    parent = next((parent for parent in _PARENTS if _starts_with(command, parent)), ())
    return ("python3", posixpath.basename(CONTAINER_PARENT), *command[len(parent) :]) if parent else tuple(command)


def _starts_with(command: Sequence[str], words: tuple[str, ...]) -> bool:
    return tuple(command[: len(words)]) == words


def task_name(role: RoleName, index: int) -> str:
    """Return the name of a task: `chief`, `evaluator`, `worker-0`, `ps-1`."""
    return role if role in SINGLE_TASK_ROLES else f"{role}-{index}"


def role_and_index(name: str) -> tuple[str, int | None]:
    """Return the role of a task, and its index if its name has one: `worker-0` gives `worker` and 0, `chief` gives `chief` and None."""
    role, _, index = name.partition("-")
    return role, int(index) if index else None


def role_position(role: str) -> int:
    """Return the position of a role in ROLE_ORDER; an unknown role comes last."""
    known: tuple[str, ...] = ROLE_ORDER
    return known.index(role) if role in known else len(known)


def restart_scope(strategy: str, role: RoleName) -> Scope:
    """Return which tasks start again when a task of `role` ends early; `alone` for an unknown strategy or role."""
    return next((traits.restarts.get(role, "alone") for name, traits in STRATEGIES.items() if name == strategy), "alone")


def leader(names: Iterable[str]) -> str:
    """Return the leader: the chief, or worker-0 if there is none."""
    return "chief" if "chief" in set(names) else "worker-0"


def end_grace_periods(strategy: str, *, worker: float, evaluator: float, peer: float) -> dict[RoleName, float]:
    """Return by role the seconds that a task of a user's own program has to end by itself once the run has succeeded.

    `worker` is for workers of parameter servers, `peer` for the tasks of an all-reduce; a ps never ends by itself.
    """
    of_workers = worker if strategy in SERVER_STRATEGIES else peer
    return {"chief": of_workers, "worker": of_workers, "ps": 0.0, "evaluator": evaluator}


def leading_role_name(names: Iterable[str]) -> str:
    """Return the role of the leader, from the names of tasks or of roles."""
    return role_and_index(leader(names))[0]


def mounts_run_dir(name: str, *, leader: str) -> bool:
    """Return whether the trainer needs the run directory in a task: only in the leader and the evaluator."""
    return name in {leader, "evaluator"}


def required_tasks(names: Iterable[str], *, is_command: bool = False, success: str = "chief") -> tuple[str, ...]:
    """Return the tasks whose success the run needs: the leader, and the trainer's own evaluator (that of a user's program may never end).

    For a user's own program `success` says whether all workers are required, too.
    """
    known = list(names)
    others = [] if is_command else ["evaluator"]
    if success == "all_workers":
        others += [name for name in known if name.startswith("worker-") and name != leader(known)]
    return tuple(name for name in (leader(known), *others) if name in known)
