"""Room for a pod on a cluster's nodes, as if they were empty. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.events import listed

Object = Mapping[str, Any]

# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_UNITS = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18} | {
    f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)
}
_AMOUNT = re.compile(r"([0-9.]+(?:[eE][+-]?\d+)?)([a-zA-Z]*)$")
_LISTED = 5  # values of a label


def amount(quantity: object) -> float:
    """Return a quantity of Kubernetes such as `500m` or `4Gi` as a number; 0 for what is none."""
    match = _AMOUNT.match(str(quantity))
    return float(match[1]) * _UNITS.get(match[2], 0.0) if match else 0.0


def lacking(wanted: Mapping[str, float], labels: Mapping[str, str], nodes: Sequence[Object]) -> list[str]:
    """Return what no node of the cluster has or offers of what a pod asks for; nothing where waiting may help, or no node is known."""
    found = [
        _no_label(key, value, nodes) for key, value in labels.items() if nodes and not any(_label(node, key) == value for node in nodes)
    ]
    if found:
        return found
    fitting = [node for node in nodes if all(_label(node, key) == value for key, value in labels.items())]
    for key, value in wanted.items():
        most = max((amount((node.get("status", {}).get("allocatable") or {}).get(key)) for node in fitting), default=value)
        if value > most:
            offered = f"the most a node offers is {shown(most)}" if most else "no node offers any"
            found.append(f"{shown(value)} of {key} is asked for, and {offered}")
    return found


def of_pod(pod: Object, nodes: Sequence[Object]) -> list[str]:
    """Return the same of a pod, by what its containers request."""
    spec, wanted = pod.get("spec", {}), dict[str, float]()
    for container in spec.get("containers", ()):
        asked = container.get("resources") or {}
        for key, value in {**(asked.get("limits") or {}), **(asked.get("requests") or {})}.items():
            wanted[key] = wanted.get(key, 0.0) + amount(value)
    return lacking(wanted, spec.get("nodeSelector") or {}, nodes)


def shown(value: float) -> str:
    """Return an amount as people write it: large ones are bytes."""
    if value < 2**20:
        return f"{round(value, 3):g}"
    unit, size = next((unit, size) for unit, size in (("Gi", 2**30), ("Mi", 2**20)) if value >= size)
    return f"{round(value / size, 1):g}{unit}"


def _label(node: Object, key: str) -> str | None:
    value = (node["metadata"].get("labels") or {}).get(key)
    return None if value is None else str(value)


def _no_label(key: str, value: str, nodes: Sequence[Object]) -> str:
    there = sorted({one for node in nodes if (one := _label(node, key)) is not None})
    return f"no node has the label {key}={value}" + (f"; its values are {listed(there, _LISTED)}" if there else "")
