"""The record of a run in the cluster: a ConfigMap with lease, spec, user and objects of its last start, and with its final status.

It owns the run's other objects, except the claim with its data: they are deleted with it.
"""

import contextlib
import dataclasses
import json
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from launcher.backend.kubernetes.client import Cluster, Object, as_json, http_status
from launcher.backend.kubernetes.run_context import ObjectRef
from launcher.errors import LauncherError, UsageError
from launcher.files import json_object
from launcher.render.kubernetes.objects import Run, checked, metadata
from launcher.runs import process_identity
from launcher.runs.status import RunStatus, TaskStatus, run_status_from_json

RECORD_COMPONENT = "record"
# Keys of its data.
_SPEC, _STATUS, _STOPPING, _START, _CLAIM, _USER = "spec.json", "status.json", "stopping.json", "start", "claim", "user"
_OBJECTS, _DIGEST = "made.json", "digest"  # the digest of the spec, as on the Jobs and in run.json
# The record's annotation with the lease while a launcher starts the run. It expires after these seconds of the cluster's clock: the launcher was killed.
_LEASE_ANNOTATION = "tf-launcher/starting"
_LEASE_DURATION = 600.0
_OTHER_START_REMEDY = "see `launcher status`; if that launcher is gone, run `launcher down`, then start the run"
# Fields of a status that depend on its reader and on the time.
_VIEWER_FIELDS = frozenset({"data_lost", "missing", "user", "mine", "attended", "notified"})
# Bytes of a status: a ConfigMap may have 1 MiB, and the spec needs some of it.
_MAX_STATUS_SIZE = 700_000
# Fields of a task that every stored status has, and the values that are left out.
_TASK_FIELDS = ("name", "state", "restarts")
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(TaskStatus) if field.name not in _TASK_FIELDS}
# Tries of a change, if others change the record at the same time, e.g. to record the run's end.
_TRIES = 10
_Result = TypeVar("_Result")


def name_of(run: str) -> str:
    """Return the name of a run's record."""
    return checked(f"{run}-record")


class LeaseLostError(LauncherError):
    """This launcher no longer starts the run: the run was stopped, or another launcher has taken over."""


@dataclass(frozen=True)
class StartLease:
    """The lease that keeps every other launcher out while one starts a run. `previous_record` is to be restored on failure; None to delete the record."""

    run: str
    id: str
    previous_record: Object | None


def refuse_if_starting(cluster: Cluster, run: str, record: Object | None) -> None:
    """Raise UsageError if another launcher is starting the run."""
    if message := starting_launcher(record, cluster.now()):
        raise UsageError(f"{run} in {cluster.description()} is being {message}", _OTHER_START_REMEDY)


def new_lease(cluster: Cluster, run: Run, previous_record: Object | None, ended: RunStatus | None) -> StartLease:
    """Return a new lease. If the start fails, it restores `previous_record`, with the end `ended` added if that is not None."""
    if ended is not None:
        current = previous_record or _manifest(cluster, run, {})
        data = {key: text for key, text in _data(current).items() if key != _STOPPING}  # both might not fit
        previous_record = {**current, "data": {**data, _STATUS: status_to_json(ended)}}
    return StartLease(run.name, uuid.uuid4().hex, previous_record)


def acquire(cluster: Cluster, run: Run, lease: StartLease) -> bool:
    """Put the lease on the record; return False if the record was changed since it was read. Safe to repeat if the cluster did not answer."""
    record = _annotated(lease.previous_record or _manifest(cluster, run, {}), {_LEASE_ANNOTATION: _lease_text(lease, cluster.now())})
    try:
        if "resourceVersion" in record["metadata"]:
            cluster.replace(record)
        else:
            cluster.create(record)
    except LauncherError as error:
        if http_status(error) != 409:
            raise
        return is_held(cluster, lease)  # by an earlier try whose answer was lost
    return True


def write(cluster: Cluster, run: Run, lease: StartLease, spec: dict[str, Any]) -> Object:
    """Write and return the record of a run that starts, in place of an earlier one. Raises LeaseLostError."""
    data = {_SPEC: as_json(spec), _DIGEST: run.plan.spec_digest, _START: lease.id, _USER: cluster.user()}
    record = _annotated(_manifest(cluster, run, data), {_LEASE_ANNOTATION: _lease_text(lease, cluster.now())})
    return _change(cluster, lease, lambda current: _with_claim(record, claim_uid(current) if _is_on_its_claim(run, current) else None))


def _is_on_its_claim(run: Run, record: Object) -> bool:
    return run.storage is not None and claim_name(run.name, record) == run.claim


def write_objects(cluster: Cluster, lease: StartLease, claim_uid: str | None, objects: Sequence[ObjectRef]) -> None:
    """Record the uid of the run's claim, and all its other objects. Raises LeaseLostError."""

    def with_objects(record: Object) -> Object:
        return _with_claim(
            {**record, "data": {**record["data"], _OBJECTS: as_json([dataclasses.astuple(ref) for ref in objects])}}, claim_uid
        )

    _change(cluster, lease, with_objects)


def _with_claim(record: Object, uid: str | None) -> Object:
    return {**record, "data": {**record["data"], **({_CLAIM: uid} if uid else {})}}


def clear(cluster: Cluster, lease: StartLease) -> StartLease:
    """Clear the record of the earlier run, which was renamed; return a lease without a record to restore. Raises LeaseLostError."""
    _change(cluster, lease, lambda record: {**record, "data": {}})
    return dataclasses.replace(lease, previous_record=None)


def verify(cluster: Cluster, lease: StartLease) -> Object:
    """Return the record. Raises LeaseLostError if the lease is no longer on it."""
    record = cluster.get("ConfigMap", name_of(lease.run))
    found = _lease(record).get("id")
    if record is None or found is None:
        raise LeaseLostError(
            f"{lease.run} in {cluster.description()} was stopped while it was being started", "start it again with `launcher up`"
        )
    if found != lease.id:
        raise LeaseLostError(
            f"another `launcher up` has taken over the start of {lease.run} in {cluster.description()}", _OTHER_START_REMEDY
        )
    return record


def is_held(cluster: Cluster, lease: StartLease) -> bool:
    """Return whether the lease is on the record."""
    try:
        verify(cluster, lease)
    except LeaseLostError:
        return False
    return True


def is_taken_over(cluster: Cluster, lease: StartLease) -> bool:
    """Return whether another launcher has started the run since, or is starting it; False if it was only stopped."""
    record = cluster.get("ConfigMap", name_of(lease.run))
    return (_lease(record).get("id") or start_id(record)) not in {None, lease.id}


def release(cluster: Cluster, lease: StartLease) -> None:
    """Release the lease: the start is complete. Raises LeaseLostError if the run was stopped meanwhile."""
    try:
        _change(cluster, lease, lambda current: _annotated(current, {_LEASE_ANNOTATION: None}))
    except LeaseLostError:
        current = cluster.get("ConfigMap", name_of(lease.run))
        if _lease(current) or start_id(current) != lease.id:
            raise  # else it was released by an earlier try whose answer was lost


def revoke(cluster: Cluster, run: str) -> None:
    """Revoke the lease of the launcher that starts the run, because the run is being stopped."""
    if _LEASE_ANNOTATION in _annotations(cluster.get("ConfigMap", name_of(run))):
        cleared = {"metadata": {"annotations": {_LEASE_ANNOTATION: None}}, "data": {_START: None}}
        cluster.patch("ConfigMap", name_of(run), cleared)


def undo(cluster: Cluster, lease: StartLease) -> None:
    """Restore the record after a start that failed; do nothing if the lease is lost.

    If the previous run's final status was recorded during this start (e.g. it was stopped in order to be moved), it is kept.
    """
    with contextlib.suppress(LeaseLostError):
        current = verify(cluster, lease)
        if lease.previous_record is None and (start_id(current) == lease.id or not current.get("data")):
            cluster.delete("ConfigMap", name_of(lease.run), uid=current["metadata"]["uid"])
        else:
            _change(cluster, lease, lambda record: _annotated(_restored_record(lease, record), {_LEASE_ANNOTATION: None}))


def starting_launcher(record: Object | None, now: float) -> str:
    """Return which launcher starts a run at `now`, by the cluster's clock, as `started by ...`; empty if none does, or it is known to be dead."""
    lease = _lease(record)
    try:
        age = now - float(lease["since"])
    except (KeyError, TypeError, ValueError):
        return ""
    # Another host or container may have the same name, but its processes are not visible here.
    is_local = lease.get("host") == socket.gethostname() and lease.get("space") == process_identity.pid_namespace()
    is_dead = is_local and _process(lease.get("pid")).get("born") != lease.get("born")
    if is_dead or age > _LEASE_DURATION:
        return ""
    return f"started by `launcher up` on {lease.get('host', '?')}, which began {max(0.0, age):.0f} s ago"


def owner(record: Object) -> Object:
    """Return the owner reference to the record."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": record["metadata"]["name"], "uid": record["metadata"]["uid"]}


def spec(record: Object | None) -> dict[str, Any] | None:
    """Return the spec that the run was last started with, or None when it is not known."""
    return json_object(_data(record).get(_SPEC, ""))


def digest(record: Object | None) -> str:
    """Return the digest of the spec that the run was last started with, empty if it is not known."""
    return str(_data(record).get(_DIGEST, ""))


def claim_uid(record: Object | None) -> str | None:
    """Return the uid of the claim that the run was last started with, or None when it is not known."""
    return _data(record).get(_CLAIM)


def claim_name(run: str, record: Object | None) -> str:
    """Return the name of the claim that a run was last started with."""
    section = (spec(record) or {}).get("kubernetes") or {}
    return str(section.get("claim") or run)


def recorded_objects(record: Object | None) -> list[ObjectRef]:
    """Return the objects that the last start of a run has created, except its claim; none if they are not known."""
    return [ObjectRef(*entry) for entry in json.loads(_data(record).get(_OBJECTS, "[]"))]


def user(record: Object | None) -> str:
    """Return the user who started the run last, empty when it is not known."""
    return str(_data(record).get(_USER, ""))


def final(record: Object | None) -> RunStatus | None:
    """Return the recorded end of the run, None without one."""
    return _status(record, _STATUS)


def stopping(record: Object | None) -> RunStatus | None:
    """Return the final status recorded when a stop was requested; use it only once all pods are gone."""
    return _status(record, _STOPPING)


def start_id(record: Object | None) -> str | None:
    """Return the id of the last start of the run, which is that of its lease; None if it is not known or was revoked."""
    return _data(record).get(_START)


def roles(record: Object | None) -> frozenset[str]:
    """Return the roles of the run that was last started; none when they are not known."""
    return frozenset(role for role, one in ((spec(record) or {}).get("roles") or {}).items() if one)


def write_end(cluster: Cluster, status: RunStatus, start: str | None) -> None:
    """Record the end of the start with the id `start`, as `start_id` returns it.

    Do nothing if an end is recorded, or if there is no record, or that of a later start.
    """
    _write_status(cluster, status.name, start, {_STATUS: status_to_json(status), _STOPPING: None}, lambda record: final(record) is None)


def write_stopping(cluster: Cluster, status: RunStatus, start: str | None) -> None:
    """Record that a start of a run is being stopped, with its final status; do nothing if it has no record or was started again."""
    _write_status(cluster, status.name, start, {_STOPPING: status_to_json(status)})


def update_end(cluster: Cluster, status: RunStatus, start: str | None) -> None:
    """Like `write_end`, but replace a recorded end."""
    _write_status(cluster, status.name, start, {_STATUS: status_to_json(status), _STOPPING: None})


def _write_status(
    cluster: Cluster, run: str, start: str | None, data: dict[str, str | None], is_wanted: Callable[[Object], bool] = lambda _: True
) -> None:
    """Write the data if the record is that of `start` and is wanted; try again if others change the record meanwhile."""

    def patch() -> None:
        record = cluster.get("ConfigMap", name_of(run))
        if record is not None and start_id(record) == start and is_wanted(record):
            version = {"resourceVersion": record["metadata"]["resourceVersion"]}
            cluster.patch("ConfigMap", name_of(run), {"metadata": version, "data": data})

    _retry_on_conflict(patch)


def status_to_json(status: RunStatus, max_size: int = _MAX_STATUS_SIZE) -> str:
    """Return a status as JSON, without the fields that depend on the user and the time.

    If that would be more than `max_size` bytes, tasks lose their restarts, then all but their states, and at last they are left out.
    """
    fields = {key: value for key, value in dataclasses.asdict(status).items() if key not in _VIEWER_FIELDS}
    texts = (as_json({**fields, "tasks": tasks}) for tasks in _shortened(fields["tasks"]))
    return next((text for text in texts if len(text) <= max_size), as_json({**fields, "tasks": []}))


def _shortened(tasks: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the fields of tasks: without default values, then without restarts, then only names and states."""
    known = [{key: value for key, value in task.items() if key not in _DEFAULTS or value != _DEFAULTS[key]} for task in tasks]
    yield known
    yield [{**task, "restarts": ()} for task in known]
    yield [{"name": task["name"], "state": task["state"], "restarts": ()} for task in tasks]


def _manifest(cluster: Cluster, run: Run, data: dict[str, str]) -> Object:
    own_metadata = metadata(run, name_of(run.name), RECORD_COMPONENT)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**own_metadata, "namespace": cluster.namespace}, "data": data}


def _lease_text(lease: StartLease, now: float) -> str:
    """Return the annotation's text for a lease held by this process from now on."""
    return as_json({"id": lease.id, "host": socket.gethostname(), "since": now, **_process(os.getpid())})


def _lease(record: Object | None) -> dict[str, Any]:
    return json_object(_annotations(record).get(_LEASE_ANNOTATION, "")) or {}


def _change(cluster: Cluster, lease: StartLease, change: Callable[[Object], Object]) -> Object:
    """Apply `change` to the record while the lease is on it; return the new record. Raises LeaseLostError."""

    def replace() -> Object:
        current = verify(cluster, lease)
        changed = change(current)
        version = {"resourceVersion": current["metadata"]["resourceVersion"]}
        return cluster.replace({**changed, "metadata": {**changed["metadata"], **version}})

    return _retry_on_conflict(replace)


def _retry_on_conflict(action: Callable[[], _Result]) -> _Result:
    """Return what `action` returns; try again if the API server refuses it because the record was changed after it was read."""
    for _ in range(_TRIES - 1):
        try:
            return action()
        except LauncherError as error:
            if http_status(error) != 409:
                raise
    return action()


def _restored_record(lease: StartLease, current: Object) -> Object:
    """Return the record to restore: the current one, if this start has not written its own."""
    if lease.previous_record is None or start_id(current) != lease.id:
        return current
    previous, kept = lease.previous_record, ("name", "namespace", "labels", "annotations")
    kept_metadata = {key: value for key, value in previous["metadata"].items() if key in kept}
    return {**previous, "metadata": {**kept_metadata, "uid": current["metadata"]["uid"]}}


def _annotated(record: Object, annotations: Mapping[str, str | None]) -> Object:
    """Return a record with these annotations; None removes one."""
    merged = {key: value for key, value in {**_annotations(record), **annotations}.items() if value is not None}
    return {**record, "metadata": {**record["metadata"], "annotations": merged}}


def _process(pid: object) -> dict[str, Any]:
    """Return the identity of a process of this machine or container; empty if there is none."""
    found = process_identity.identify(pid) if isinstance(pid, int) else None
    return {} if found is None else {**dataclasses.asdict(found), "space": process_identity.pid_namespace()}


def _annotations(record: Object | None) -> dict[str, str]:
    return ((record or {}).get("metadata") or {}).get("annotations") or {}


def status_from_json(text: str) -> RunStatus | None:
    """Return the status from its JSON; None if the text is not a status of this version."""
    try:
        return run_status_from_json(json.loads(text))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _status(record: Object | None, key: str) -> RunStatus | None:
    return status_from_json(_data(record).get(key, ""))


def _data(record: Object | None) -> dict[str, Any]:
    return (record or {}).get("data") or {}
