"""The record of a run in the cluster: a ConfigMap with the spec it was started with and, once it has ended, how.

It owns the run's other objects but the claim of its data: deleted, they go with it.
"""

import dataclasses
import json
from typing import Any

from launcher.backend.kubernetes.api import Cluster, Object, as_json, status_of
from launcher.backend.model import Restart, RunStatus, State, TaskStatus
from launcher.errors import LauncherError, UsageError
from launcher.render.kubernetes.objects import Run, checked, metadata

COMPONENT = "record"
_SPEC, _STATUS = "spec.json", "status.json"


def name_of(run: str) -> str:
    """Return the name of a run's record."""
    return checked(f"{run}-record")


def write(cluster: Cluster, run: Run, spec: dict[str, Any]) -> Object:
    """Write the record of a run that starts, in place of the one before, and return it.

    Raises UsageError when another `up` has been quicker.
    """
    head = metadata(run, name_of(run.name), COMPONENT)
    head["namespace"] = cluster.namespace
    made: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": head, "data": {_SPEC: as_json(spec)}}
    old = cluster.get("ConfigMap", head["name"])
    try:
        if old is None:
            return cluster.create(made)
        head["resourceVersion"] = old["metadata"]["resourceVersion"]
        return cluster.replace(made)
    except LauncherError as error:
        if status_of(error) == 409:
            raise UsageError(
                f"another `launcher up` is starting {run.name} in {cluster.words()}", "see how it goes: launcher status"
            ) from error
        raise


def owner(record: Object) -> Object:
    """Return the reference by which an object belongs to the record."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": record["metadata"]["name"], "uid": record["metadata"]["uid"]}


def spec(record: Object | None) -> dict[str, Any] | None:
    """Return the spec that the run was last started with, or None when it is not known."""
    return _document(record, _SPEC)


def final(record: Object | None) -> RunStatus | None:
    """Return how the run has ended, where that was noted."""
    document = _document(record, _STATUS)
    if document is None:
        return None
    try:
        tasks = tuple(_task(task) for task in document.pop("tasks"))
        return RunStatus(**{**document, "state": State(document["state"]), "tasks": tasks})
    except (KeyError, TypeError, ValueError):  # another version's
        return None


def roles(record: Object | None) -> frozenset[str]:
    """Return the roles of the run that was last started; none when they are not known."""
    return frozenset(role for role, one in ((spec(record) or {}).get("roles") or {}).items() if one)


def note(cluster: Cluster, status: RunStatus) -> None:
    """Note how a run has ended; nothing where that is noted, or where it has no record."""
    kept = cluster.get("ConfigMap", name_of(status.name))
    if kept is not None and final(kept) is None:
        _write_final(cluster, status)


def amend(cluster: Cluster, status: RunStatus) -> None:
    """Note how a run has ended in place of what was noted; nothing where it has no record."""
    if cluster.get("ConfigMap", name_of(status.name)) is not None:
        _write_final(cluster, status)


def _write_final(cluster: Cluster, status: RunStatus) -> None:
    cluster.patch("ConfigMap", name_of(status.name), {"data": {_STATUS: as_json(dataclasses.asdict(status))}})


def _document(record: Object | None, key: str) -> dict[str, Any] | None:
    try:
        document = json.loads(((record or {}).get("data") or {}).get(key, ""))
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _task(document: dict[str, Any]) -> TaskStatus:
    restarts = tuple(Restart(**restart) for restart in document["restarts"])
    return TaskStatus(**{**document, "state": State(document["state"]), "restarts": restarts})
