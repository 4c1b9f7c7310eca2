"""The ports of tasks, and TF_CONFIG made of their addresses.

Every task listens on 2222 where it has a host of its own; on one machine each has its own port.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from launcher.errors import LauncherError
from launcher.plan.models import Plan, Task

PORT = 2222
EXCHANGE_PORT = PORT + 1  # where the tasks of an all-reduce on CPUs listen for each other: trainer.engine.collectives.rendezvous
ENDING_PORT = PORT + 2  # where the leading task's parent answers the others' parents about the end of the run: trainer.ending
LOOPBACK = "127.0.0.1"

# Linux refuses one argument or environment string longer than this (MAX_ARG_STRLEN, 32 pages), its NUL included.
ENVIRONMENT_LIMIT = 128 * 1024


def cluster(members: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return TF_CONFIG's `cluster` from (task type, address) in order; the evaluator is never in it."""
    by_type: dict[str, list[str]] = {}
    for kind, address in members:
        if kind != "evaluator":
            by_type.setdefault(kind, []).append(address)
    return by_type


def tf_config_text(tf_config: Mapping[str, Any]) -> str:
    """Return TF_CONFIG as the environment holds it: JSON without spaces."""
    return json.dumps(tf_config, separators=(",", ":"))


def check_size(members: Mapping[str, list[str]]) -> None:
    """Raise LauncherError when TF_CONFIG of this cluster does not fit in one environment string; says what would."""
    task = {"type": "evaluator", "index": 0}
    total = sum(map(len, members.values()))
    around = len("TF_CONFIG=") + 1 + len(str(total))
    size = around + len(tf_config_text({"cluster": members, "task": task}))
    if size <= ENVIRONMENT_LIMIT:
        return
    used = around + len(tf_config_text({"cluster": {role: [] for role in members}, "task": task}))
    fit = 0
    for address in (address for listed in members.values() for address in listed):
        used += len(address) + 3  # quotes and comma
        if used > ENVIRONMENT_LIMIT:
            break
        fit += 1
    raise LauncherError(
        f"the addresses of {total} tasks make a TF_CONFIG of {size} bytes; one environment variable holds {ENVIRONMENT_LIMIT}",
        f"ask for at most {fit} tasks in chief, worker and ps together, or shorten the run's name where it is part of every address",
    )


def with_addresses(plan: Plan, held: Mapping[str, str]) -> Plan:
    """Return the plan with other addresses, every TF_CONFIG included. `held` has one for each task of the cluster."""
    moved = {task.name: held.get(task.name, task.address) for task in plan.tasks}
    members = cluster((task.tf_config["task"]["type"], moved[task.name]) for task in plan.tasks)

    def at(task: Task) -> Task:
        return dataclasses.replace(task, address=moved[task.name], tf_config={"cluster": members, "task": task.tf_config["task"]})

    return dataclasses.replace(plan, tasks=tuple(at(task) for task in plan.tasks))
