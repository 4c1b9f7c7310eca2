"""Reads requests and limits of a container: into its fields in the spec if both are equal, else into an override."""

from decimal import Decimal, InvalidOperation
from typing import Any

from launcher.spec import quantities
from launcher.spec.fields import MAX_CORES, MAX_GPUS
from launcher.spec.kubernetes import Kubernetes
from launcher.spec.problems import FieldError, Path, shown
from launcher.tfjob.builder import RoleBuilder

GPU = Kubernetes().gpu_resource
_FIELDS = ("cpu", "memory")


def read(role: RoleBuilder, path: Path) -> None:
    """Carry over requests and limits. GPUs, whose requests always equal their limits, become the role's `gpus`."""
    reader = role.reader
    declared = dict(reader.mapping(path))
    limits = _quantities(role, (*path, "limits"))
    requests = _quantities(role, (*path, "requests"))
    count = _gpus(limits.get(GPU, requests.get(GPU)))
    if count is not None:
        role.set("gpus", count, path)
        limits.pop(GPU, None)
        requests.pop(GPU, None)
    more = set(declared) - {"limits", "requests"}
    fields = None if more else _fields(limits, requests)
    if fields is not None:
        for key, value in fields.items():
            role.set(key, value, (*path, "limits", key))
        return
    resources: dict[str, Any] = {key: declared[key] for key in more}
    resources |= {key: value for key, value in (("requests", requests), ("limits", limits)) if value}
    if resources:
        role.container["resources"] = resources


def as_fields(given: dict[str, Any]) -> dict[str, Any] | None:
    """Return the resources of a container as `cpu` and `memory`, or None if those cannot express them."""
    quantity_maps: list[dict[str, str]] = []
    for key in ("limits", "requests"):
        amounts = given.get(key) or {}
        if not isinstance(amounts, dict) or not all(isinstance(amount, str | int | float) for amount in amounts.values()):
            return None
        quantity_maps.append({name: str(value) for name, value in amounts.items()})
    return None if set(given) - {"limits", "requests"} else _fields(*quantity_maps)


def _fields(limits: dict[str, str], requests: dict[str, str]) -> dict[str, Any] | None:
    # Without a request, Kubernetes uses the limit as the request.
    if {**limits, **requests} != limits or set(limits) - set(_FIELDS) or not _are_exact(limits):
        return None
    return {key: int(value) if key == "cpu" and value.isdigit() else value for key, value in limits.items()}


def _quantities(role: RoleBuilder, path: Path) -> dict[str, str]:
    """Return the quantities of a mapping as texts; Kubernetes takes numbers, too."""
    texts: dict[str, str] = {}
    for key, value in role.reader.mapping(path).items():
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            texts[key] = str(value)
        elif value is not None:
            role.reader.add_problem((*path, key), f"{shown(value)} is not an amount", "such as 2, 500m or 4Gi", "write the amount")
    return texts


def _gpus(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= MAX_GPUS:
        return None
    return int(text)


def _are_exact(limits: dict[str, str]) -> bool:
    """Return whether a role's `cpu` and `memory` can express the limits exactly."""
    try:
        if "memory" in limits:
            quantities.parse_memory(limits["memory"])
        if "cpu" in limits:
            cores = quantities.parse_cpu(limits["cpu"])
            thousandths = Decimal(limits["cpu"][:-1]) if limits["cpu"].endswith("m") else Decimal(limits["cpu"]) * 1000
            # The pod gets the same amount.
            return cores <= MAX_CORES and quantities.millicores(cores) == thousandths
    except (FieldError, InvalidOperation):
        return False
    return True
