"""Whether a pod fits on a cluster's nodes if they are empty. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.spec.quantities import parse_quantity
from trainer.events import join_names

Object = Mapping[str, Any]

_LISTED = 5  # values of a label


def unmet_requirements(wanted: Mapping[str, float], labels: Mapping[str, str], nodes: Sequence[Object]) -> list[str]:
    """Return a message for each label and resource of a pod that no node has even when empty; none if waiting may help, or no node is known."""
    found = [
        _no_label(key, value, nodes) for key, value in labels.items() if nodes and not any(_label(node, key) == value for node in nodes)
    ]
    if found:
        return found
    fitting = [node for node in nodes if all(_label(node, key) == value for key, value in labels.items())]
    for key, value in wanted.items():
        most = max((parse_quantity((node.get("status", {}).get("allocatable") or {}).get(key)) for node in fitting), default=value)
        if value > most:
            offered = f"the most a node offers is {format_quantity(most)}" if most else "no node offers any"
            found.append(f"{format_quantity(value)} of {key} is asked for, and {offered}")
    return found


def unmet_needs(pod: Object, nodes: Sequence[Object]) -> list[str]:
    """Return a message for each label and resource that a pod needs and no node has; its resources are the requests of its containers."""
    spec, requests = pod.get("spec", {}), dict[str, float]()
    for container in spec.get("containers", ()):
        resources = container.get("resources") or {}
        for key, value in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            requests[key] = requests.get(key, 0.0) + parse_quantity(value)
    return unmet_requirements(requests, spec.get("nodeSelector") or {}, nodes)


def format_quantity(value: float) -> str:
    """Return an amount as readable text; large ones are taken for bytes."""
    if value < 2**20:
        return f"{round(value, 3):g}"
    unit, size = next((unit, size) for unit, size in (("Gi", 2**30), ("Mi", 2**20)) if value >= size)
    return f"{round(value / size, 1):g}{unit}"


def _label(node: Object, key: str) -> str | None:
    value = (node["metadata"].get("labels") or {}).get(key)
    return None if value is None else str(value)


def _no_label(key: str, value: str, nodes: Sequence[Object]) -> str:
    values = sorted({one for node in nodes if (one := _label(node, key)) is not None})
    return f"no node has the label {key}={value}" + (f"; its values are {join_names(values, _LISTED)}" if values else "")
