"""Fields of Kubernetes objects that several modules read. Pure."""

from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]


def label(thing: Object, key: str) -> str:
    """Return a label of an object, empty if it has none."""
    return str((thing["metadata"].get("labels") or {}).get(key, ""))


def node_of(pod: Object) -> str:
    """Return the name of a pod's node, empty if it has none."""
    return str(pod.get("spec", {}).get("nodeName") or "")


def phase(thing: Object) -> str:
    """Return the phase of a pod or a claim, empty if it has none."""
    return str(thing.get("status", {}).get("phase", ""))


def namespace_option(thing: Object) -> str:
    """Return an object's namespace as an option of kubectl, after a space; empty if it has none."""
    namespace = thing.get("metadata", {}).get("namespace")
    return f" -n {namespace}" if namespace else ""


def is_active(pod: Object) -> bool:
    """Return whether a pod runs or waits to run."""
    return phase(pod) in {"Pending", "Running"}


def has_ended(pod: Object) -> bool:
    """Return whether a pod has succeeded or failed."""
    return phase(pod) in {"Succeeded", "Failed"}


def is_being_deleted(thing: Object) -> bool:
    """Return whether an object was deleted and is not gone yet, such as a pod during its grace period."""
    return bool(thing["metadata"].get("deletionTimestamp"))


def condition_entry(thing: Object, kind: str) -> Object:
    """Return the entry of an object's condition, whatever its status; empty if it has none."""
    return next((entry for entry in thing.get("status", {}).get("conditions") or () if entry["type"] == kind), {})


def true_condition(thing: Object, kind: str) -> Object | None:
    """Return an object's condition of this type if it is true, else None."""
    entry = condition_entry(thing, kind)
    return entry if entry.get("status") == "True" else None
