"""Fields of Kubernetes objects that several modules read. Pure."""

from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]


def label(obj: Object, key: str) -> str:
    """Return a label of an object, empty if it has none."""
    return str((obj["metadata"].get("labels") or {}).get(key, ""))


def node_of(pod: Object) -> str:
    """Return the name of a pod's node, empty if it has none."""
    return str(pod.get("spec", {}).get("nodeName") or "")


def phase(obj: Object) -> str:
    """Return the phase of a pod or a claim, empty if it has none."""
    return str(obj.get("status", {}).get("phase", ""))


def namespace_option(obj: Object) -> str:
    """Return an object's namespace as an option of kubectl, after a space; empty if it has none."""
    namespace = obj.get("metadata", {}).get("namespace")
    return f" -n {namespace}" if namespace else ""


def is_active(pod: Object) -> bool:
    """Return whether a pod runs or waits to run."""
    return phase(pod) in {"Pending", "Running"}


def has_ended(pod: Object) -> bool:
    """Return whether a pod has succeeded or failed."""
    return phase(pod) in {"Succeeded", "Failed"}


def is_being_deleted(obj: Object) -> bool:
    """Return whether an object was deleted and is not gone yet, such as a pod during its grace period."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def condition_entry(obj: Object, kind: str) -> Object:
    """Return the entry of an object's condition, whatever its status; empty if it has none."""
    return next((entry for entry in obj.get("status", {}).get("conditions") or () if entry["type"] == kind), {})


def true_condition(obj: Object, kind: str) -> Object | None:
    """Return an object's condition of this type if it is true, else None."""
    entry = condition_entry(obj, kind)
    return entry if entry.get("status") == "True" else None
