"""The record of a run in the cluster: a ConfigMap with the spec it was started with and, once it has ended, how.

It owns the run's other objects but the claim of its data: deleted, they go with it.
"""

import dataclasses
import json
import os
import socket
import time
import uuid
from dataclasses import dataclass
from typing import Any

from launcher.backend.kubernetes.api import Cluster, Object, as_json, status_of
from launcher.backend.local import processes
from launcher.backend.model import Restart, RunStatus, State, TaskStatus
from launcher.errors import LauncherError, UsageError
from launcher.render.kubernetes.objects import Run, checked, metadata

COMPONENT = "record"
_SPEC, _STATUS = "spec.json", "status.json"
# On the record while a launcher starts the run. One that was killed over it is waited for no longer than this, in seconds; clocks may differ.
_STARTING = "tf-launcher/starting"
_STARTS_WITHIN = 600.0
_OTHER_START = "see how it goes: launcher status; where that launcher is gone, `launcher down` lets you start it"


def name_of(run: str) -> str:
    """Return the name of a run's record."""
    return checked(f"{run}-record")


@dataclass(frozen=True)
class Start:
    """The record of a run while one launcher starts it, and keeps every other out. `before` is the record that there was, or None."""

    run: str
    mark: str
    record: Object
    before: Object | None


def begin(cluster: Cluster, run: Run, spec: dict[str, Any], before: Object | None) -> Start:
    """Write the record of a run that starts, in place of `before`, which was read before anything else was looked at.

    Raises UsageError when another `up` has been quicker.
    """
    if words := being_started(before):
        raise UsageError(f"{run.name} in {cluster.words()} is being {words}", _OTHER_START)
    mark = as_json({"id": uuid.uuid4().hex, "host": socket.gethostname(), "since": time.time(), **_process(os.getpid())})
    head = metadata(run, name_of(run.name), COMPONENT, annotations={_STARTING: mark})
    head["namespace"] = cluster.namespace
    made: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": head, "data": {_SPEC: as_json(spec)}}
    try:
        if before is None:
            return Start(run.name, mark, cluster.create(made), None)
        head["resourceVersion"] = before["metadata"]["resourceVersion"]
        return Start(run.name, mark, cluster.replace(made), before)
    except LauncherError as error:
        if status_of(error) == 409:
            raise UsageError(f"another `launcher up` is starting {run.name} in {cluster.words()}", _OTHER_START) from error
        raise


def being_started(record: Object | None) -> str:
    """Return who starts a run at the moment, as `started by ...`; empty where nobody does, or he must have died over it."""
    try:
        mark = json.loads(_annotations(record).get(_STARTING, ""))
        age = time.time() - float(mark["since"])
    except (KeyError, TypeError, ValueError):
        return ""
    died = mark.get("host") == socket.gethostname() and _process(mark.get("pid")).get("born") != mark.get("born")
    return "" if died or age > _STARTS_WITHIN else f"started by `launcher up` on {mark.get('host', '?')} since {max(0.0, age):.0f} s"


def is_ours(cluster: Cluster, start: Start) -> bool:
    """Tell whether nobody has taken over since."""
    return _annotations(cluster.get("ConfigMap", name_of(start.run))).get(_STARTING) == start.mark


def free(cluster: Cluster, run: str) -> None:
    """Let others start the run again; it has started, or was stopped while it did."""
    if _STARTING in _annotations(cluster.get("ConfigMap", name_of(run))):
        cluster.patch("ConfigMap", name_of(run), {"metadata": {"annotations": {_STARTING: None}}})


def undo(cluster: Cluster, start: Start) -> None:
    """Put the record back as it was before a start that failed."""
    if start.before is None:
        cluster.delete("ConfigMap", name_of(start.run))
        return
    head = {key: value for key, value in start.before["metadata"].items() if key in {"name", "namespace", "labels", "annotations"}}
    cluster.replace({**start.before, "metadata": head})


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


def _process(pid: object) -> dict[str, Any]:
    """Return a process of this machine as it can be known again, empty when there is none."""
    found = processes.identify(pid) if isinstance(pid, int) else None
    return {} if found is None else dataclasses.asdict(found)


def _annotations(record: Object | None) -> dict[str, str]:
    return ((record or {}).get("metadata") or {}).get("annotations") or {}


def _document(record: Object | None, key: str) -> dict[str, Any] | None:
    try:
        document = json.loads(((record or {}).get("data") or {}).get(key, ""))
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _task(document: dict[str, Any]) -> TaskStatus:
    restarts = tuple(Restart(**restart) for restart in document["restarts"])
    return TaskStatus(**{**document, "state": State(document["state"]), "restarts": restarts})
