"""The ports of tasks, and TF_CONFIG from their addresses.

A task with its own host name listens on 2222; on one machine each task has its own port.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from launcher.errors import LauncherError
from launcher.plan.models import Plan, Task

PORT = 2222
# On this port the tasks of an all-reduce on CPUs accept each other's connections: trainer.engine.collectives.rendezvous
ALL_REDUCE_PORT = PORT + 1
RUN_END_PORT = PORT + 2  # on which the leader's parent answers the other parents about the end of the run: trainer.run_end
TENSORBOARD_PORT = 6006  # inside its container; the port outside is in the spec
LOOPBACK = "127.0.0.1"

# Linux's limit for one argument or environment string, including its NUL (MAX_ARG_STRLEN, 32 pages).
ENVIRONMENT_LIMIT = 128 * 1024


def url_host(host: str) -> str:
    """Return a host as URLs have it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def cluster(addresses: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return TF_CONFIG's `cluster` from (task type, address) in order; the evaluator is never in it."""
    by_type: dict[str, list[str]] = {}
    for task_type, address in addresses:
        if task_type != "evaluator":
            by_type.setdefault(task_type, []).append(address)
    return by_type


def tf_config_text(tf_config: Mapping[str, Any]) -> str:
    """Return TF_CONFIG as the environment holds it: JSON without spaces."""
    return json.dumps(tf_config, separators=(",", ":"))


def check_tf_config_size(tf_cluster: Mapping[str, list[str]]) -> None:
    """Raise LauncherError if TF_CONFIG of this cluster does not fit in one environment string. The remedy says how many tasks would fit."""
    task = {"type": "evaluator", "index": 0}
    total = sum(map(len, tf_cluster.values()))
    overhead = len("TF_CONFIG=") + 1 + len(str(total))
    size = overhead + len(tf_config_text({"cluster": tf_cluster, "task": task}))
    if size <= ENVIRONMENT_LIMIT:
        return
    used = overhead + len(tf_config_text({"cluster": {role: [] for role in tf_cluster}, "task": task}))
    fit = 0
    for address in (address for addresses in tf_cluster.values() for address in addresses):
        used += len(address) + 3  # quotes and comma
        if used > ENVIRONMENT_LIMIT:
            break
        fit += 1
    raise LauncherError(
        f"the addresses of {total} tasks make a TF_CONFIG of {size} bytes; one environment variable holds {ENVIRONMENT_LIMIT}",
        f"ask for at most {fit} tasks in chief, worker and ps together, or shorten the run's name, if it is part of every address",
    )


def with_addresses(plan: Plan, addresses: Mapping[str, str]) -> Plan:
    """Return the plan with other addresses, also in every TF_CONFIG. `addresses` has one for each task of the cluster."""
    by_task = {task.name: addresses.get(task.name, task.address) for task in plan.tasks}
    tf_cluster = cluster((task.tf_config["task"]["type"], by_task[task.name]) for task in plan.tasks)

    def updated(task: Task) -> Task:
        return dataclasses.replace(task, address=by_task[task.name], tf_config={"cluster": tf_cluster, "task": task.tf_config["task"]})

    return dataclasses.replace(plan, tasks=tuple(updated(task) for task in plan.tasks))
