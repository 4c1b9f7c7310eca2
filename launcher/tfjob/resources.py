"""Requests and limits of the task's container: fields of the role where they are equal, else an override."""

from decimal import Decimal, InvalidOperation
from typing import Any

from launcher.spec import quantities
from launcher.spec.kubernetes import Kubernetes
from launcher.spec.problems import FieldError, Path, shown
from launcher.tfjob.draft import RoleDraft

GPU = Kubernetes().gpu_resource
_MAX_GPUS = 64
_FIELDS = ("cpu", "memory")


def read(role: RoleDraft, path: Path) -> None:
    """Carry over requests and limits. GPUs, whose requests always equal their limits, become the role's `gpus`."""
    reading = role.reading
    given = dict(reading.mapping(path))
    limits = _quantities(role, (*path, "limits"))
    requests = _quantities(role, (*path, "requests"))
    count = _gpus(limits.get(GPU, requests.get(GPU)))
    if count is not None:
        role.put("gpus", count, path)
        limits.pop(GPU, None)
        requests.pop(GPU, None)
    more = set(given) - {"limits", "requests"}
    fields = None if more else _fields(limits, requests)
    if fields is not None:
        for key, value in fields.items():
            role.put(key, value, (*path, "limits", key))
        return
    resources: dict[str, Any] = {key: given[key] for key in more}
    resources |= {key: value for key, value in (("requests", requests), ("limits", limits)) if value}
    if resources:
        role.container["resources"] = resources


def as_fields(given: dict[str, Any]) -> dict[str, Any] | None:
    """Return the resources of a container as `cpu` and `memory`, None where those cannot say them."""
    found: list[dict[str, str]] = []
    for key in ("limits", "requests"):
        amounts = given.get(key) or {}
        if not isinstance(amounts, dict) or not all(isinstance(one, str | int | float) for one in amounts.values()):
            return None
        found.append({name: str(value) for name, value in amounts.items()})
    return None if set(given) - {"limits", "requests"} else _fields(*found)


def _fields(limits: dict[str, str], requests: dict[str, str]) -> dict[str, Any] | None:
    # Kubernetes takes the limit as the request where there is none.
    if {**limits, **requests} != limits or set(limits) - set(_FIELDS) or not _as_fields(limits):
        return None
    return {key: int(value) if key == "cpu" and value.isdigit() else value for key, value in limits.items()}


def _quantities(role: RoleDraft, path: Path) -> dict[str, str]:
    """Return the quantities of a mapping as texts; Kubernetes takes numbers, too."""
    found: dict[str, str] = {}
    for key, value in role.reading.mapping(path).items():
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            found[key] = str(value)
        elif value is not None:
            role.reading.refuse((*path, key), f"{shown(value)} is not an amount", "such as 2, 500m or 4Gi", "write the amount")
    return found


def _gpus(text: str | None) -> int | None:
    if text is None or not text.isdigit() or not 1 <= int(text) <= _MAX_GPUS:
        return None
    return int(text)


def _as_fields(limits: dict[str, str]) -> bool:
    """Return whether a role's `cpu` and `memory` say exactly this."""
    try:
        if "memory" in limits:
            quantities.parse_memory(limits["memory"])
        if "cpu" in limits:
            cores = quantities.parse_cpu(limits["cpu"])
            thousandths = Decimal(limits["cpu"][:-1]) if limits["cpu"].endswith("m") else Decimal(limits["cpu"]) * 1000
            # As the pod gets it.
            return cores <= 1024 and quantities.millicores(cores) == thousandths
    except (FieldError, InvalidOperation):
        return False
    return True
