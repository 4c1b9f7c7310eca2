"""A plan as a JSON document and back: the output of `launcher plan --json`, and the form in which a run's supervisor gets its plan."""

import dataclasses
from typing import Any

from launcher.plan.models import Plan, Resources, RestartRule, SecretKey, Task

# Fields with another key in the document. Scripts and supervisors of an older launcher read these keys: never change them.
_KEYS = {"required_tasks": "decisive", "end_grace_periods": "graces"}


def to_document(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain dictionaries and lists, ready for JSON."""
    return {_KEYS.get(name, name): value for name, value in dataclasses.asdict(plan).items()}


def from_document(document: dict[str, Any]) -> Plan:
    """Return the plan that `to_document` wrote. Raises KeyError or TypeError for anything else."""
    names = {key: name for name, key in _KEYS.items()}
    fields = {names.get(key, key): value for key, value in document.items()}
    lists = {name: tuple(fields[name]) for name in ("required_tasks", "notices")}
    return Plan(**{**fields, **lists, "tasks": tuple(_task(task) for task in document["tasks"])})


def _task(document: dict[str, Any]) -> Task:
    parts = {
        "command": tuple(document["command"]),
        "resources": Resources(**document["resources"]),
        "restart": RestartRule(**document["restart"]),
        "secrets": {name: SecretKey(**secret) for name, secret in document.get("secrets", {}).items()},
    }
    return Task(**{**document, **parts})
