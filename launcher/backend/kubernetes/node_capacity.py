"""Whether a pod fits on a cluster's nodes if they are empty. Pure."""

from collections.abc import Mapping, Sequence

from launcher.backend.kubernetes.object_fields import Object
from launcher.spec.quantities import parse_quantity
from trainer.events import join_names

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


def unmet_pod_requirements(pod: Object, nodes: Sequence[Object]) -> list[str]:
    """Return a message for each label and resource that a pod requests and no node has."""
    return unmet_requirements(pod_resources(pod, "requests"), pod.get("spec", {}).get("nodeSelector") or {}, nodes)


def pod_resources(pod: Object, section: str) -> dict[str, float]:
    """Return the `requests` or `limits` of a whole pod, as the scheduler and quotas count them.

    https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers
    """
    spec = pod.get("spec", {})
    init_containers = spec.get("initContainers") or []
    long_running = [
        *spec.get("containers", ()),
        *(container for container in init_containers if container.get("restartPolicy") == "Always"),
    ]
    running = [_quantities(container, section) for container in long_running]
    initial = [_quantities(container, section) for container in init_containers]
    # Init containers run one after the other.
    return {
        name: max([sum(amounts.get(name, 0.0) for amounts in running), *(amounts.get(name, 0.0) for amounts in initial)])
        for name in dict.fromkeys(name for amounts in [*running, *initial] for name in amounts)
    }


def _quantities(container: Object, section: str) -> dict[str, float]:
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    given = {**limits, **(resources.get("requests") or {})} if section == "requests" else limits
    return {name: parse_quantity(value) for name, value in given.items()}


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
