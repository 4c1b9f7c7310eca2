"""A plan as a JSON document and back: how the local backend hands it to its supervisor."""

import dataclasses
from typing import Any

from launcher.plan.models import Plan, Resources, RestartRule, SecretKey, Task


def to_document(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain dictionaries and lists, ready for JSON."""
    return dataclasses.asdict(plan)


def from_document(document: dict[str, Any]) -> Plan:
    """Return the plan that `to_document` wrote. Raises KeyError or TypeError for anything else."""
    tasks = tuple(_task(task) for task in document["tasks"])
    lists = {key: tuple(document[key]) for key in ("decisive", "notices")}
    return Plan(**{**document, **lists, "tasks": tasks})


def _task(document: dict[str, Any]) -> Task:
    parts = {
        "command": tuple(document["command"]),
        "resources": Resources(**document["resources"]),
        "restart": RestartRule(**document["restart"]),
        "secrets": {name: SecretKey(**secret) for name, secret in document.get("secrets", {}).items()},
    }
    return Task(**{**document, **parts})
