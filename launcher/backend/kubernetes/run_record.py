"""The record of a run in the cluster: a ConfigMap with the spec it was started with and, once it has ended, how.

It owns the run's other objects, except the claim of its data: they are deleted with it.
"""

import contextlib
import dataclasses
import json
import os
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.backend.kubernetes.client import Cluster, Object, as_json, status_of
from launcher.errors import LauncherError, UsageError
from launcher.files import json_object
from launcher.render.kubernetes.objects import Run, checked, metadata
from launcher.runs import process_identity
from launcher.runs.status import RunStatus, run_status_of

COMPONENT = "record"
_SPEC, _STATUS, _STOPPING, _START, _CLAIM, _MADE, _USER = "spec.json", "status.json", "stopping.json", "start", "claim", "made.json", "user"
_DIGEST = "digest"  # the spec's, as its Jobs and run.json have it
# An annotation of the record while a launcher starts the run, and the seconds of the cluster's clock after which it is void: that launcher was killed.
_STARTING = "tf-launcher/starting"
_START_TIMEOUT = 600.0
_OTHER_START = "see how it goes: launcher status; where that launcher is gone, `launcher down` lets you start it"
# Fields of a status that depend on the user who asks, and on the time.
_ASKED = frozenset({"data_lost", "missing", "user", "mine", "attended", "notified"})
# Tries of a change that others of the record overtake, such as a note of how the run has ended.
_TRIES = 10


def name_of(run: str) -> str:
    """Return the name of a run's record."""
    return checked(f"{run}-record")


class LeaseLostError(LauncherError):
    """The launcher does not start the run any more: the run was stopped meanwhile, or another launcher has taken over."""


@dataclass(frozen=True)
class StartLease:
    """The lease that keeps every other launcher out while one starts a run. `before` is the record to go back to, None where there is to be none."""

    run: str
    id: str
    before: Object | None


def refuse_started(cluster: Cluster, run: str, record: Object | None) -> None:
    """Raise UsageError where another launcher starts the run at the moment."""
    if message := being_started(record, cluster.now()):
        raise UsageError(f"{run} in {cluster.description()} is being {message}", _OTHER_START)


def new_lease(cluster: Cluster, run: Run, before: Object | None, ended: RunStatus | None) -> StartLease:
    """Return a lease to take of a run, with the record that was read, and how the run `ended` if the record does not say so."""
    if ended is not None:
        there = before or _made(cluster, run, {})
        before = {**there, "data": {**(there.get("data") or {}), _STATUS: dumped(ended)}}
    return StartLease(run.name, uuid.uuid4().hex, before)


def acquire(cluster: Cluster, run: Run, lease: StartLease) -> bool:
    """Put the lease on the record that was read; return whether it is there: not if the record was changed since.

    May be called again where the cluster did not answer.
    """
    made = _annotated(lease.before or _made(cluster, run, {}), {_STARTING: _text(lease, cluster.now())})
    try:
        if "resourceVersion" in made["metadata"]:
            cluster.replace(made)
        else:
            cluster.create(made)
    except LauncherError as error:
        if status_of(error) != 409:
            raise
        return is_held(cluster, lease)  # by a request of ours that was made again, as its answer was lost
    return True


def write(cluster: Cluster, run: Run, lease: StartLease, spec: dict[str, Any]) -> Object:
    """Write the record of a run that starts, in place of an earlier one; return it. Raises LeaseLostError."""
    data = {_SPEC: as_json(spec), _DIGEST: run.plan.spec_digest, _START: lease.id, _USER: cluster.user()}
    made = _annotated(_made(cluster, run, data), {_STARTING: _text(lease, cluster.now())})
    return _change(cluster, lease, lambda there: _with_claim(made, claim(there) if _is_on_its_claim(run, there) else None))


def _is_on_its_claim(run: Run, record: Object) -> bool:
    return run.storage is not None and claim_name(run.name, record) == run.claim


def write_objects(cluster: Cluster, lease: StartLease, claim: str | None, things: Sequence[tuple[str, str, str]]) -> None:
    """Write the uid of the claim that the run stores its data on, and kind, name and uid of all other objects. Raises LeaseLostError."""

    def with_objects(there: Object) -> Object:
        return _with_claim({**there, "data": {**there["data"], _MADE: as_json(things)}}, claim)

    _change(cluster, lease, with_objects)


def _with_claim(record: Object, uid: str | None) -> Object:
    return {**record, "data": {**record["data"], **({_CLAIM: uid} if uid else {})}}


def empty(cluster: Cluster, lease: StartLease) -> StartLease:
    """Forget the earlier run, which has another name now; return a lease without a record to go back to. Raises LeaseLostError."""
    _change(cluster, lease, lambda there: {**there, "data": {}})
    return dataclasses.replace(lease, before=None)


def verify(cluster: Cluster, lease: StartLease) -> Object:
    """Return the record. Raises LeaseLostError where the lease is not on it any more."""
    record = cluster.get("ConfigMap", name_of(lease.run))
    found = _lease(record).get("id")
    if record is None or found is None:
        raise LeaseLostError(
            f"{lease.run} in {cluster.description()} was stopped while it was being started", "start it again with `launcher up`"
        )
    if found != lease.id:
        raise LeaseLostError(f"another `launcher up` has taken over the start of {lease.run} in {cluster.description()}", _OTHER_START)
    return record


def is_held(cluster: Cluster, lease: StartLease) -> bool:
    """Return whether the lease is on the record."""
    try:
        verify(cluster, lease)
    except LeaseLostError:
        return False
    return True


def is_others(cluster: Cluster, lease: StartLease) -> bool:
    """Return whether another launcher has started the run since, or is about to; not where it was merely stopped."""
    record = cluster.get("ConfigMap", name_of(lease.run))
    return (_lease(record).get("id") or _started_by(record)) not in {None, lease.id}


def release(cluster: Cluster, lease: StartLease) -> None:
    """Release the lease: the start is complete. Raises LeaseLostError if the run was stopped meanwhile."""
    try:
        _change(cluster, lease, lambda there: _annotated(there, {_STARTING: None}))
    except LeaseLostError:
        there = cluster.get("ConfigMap", name_of(lease.run))
        if _lease(there) or _started_by(there) != lease.id:
            raise  # else it was released by a request of ours that was not answered


def revoke(cluster: Cluster, run: str) -> None:
    """Revoke the lease of the launcher that starts the run, because the run is being stopped."""
    if _STARTING in _annotations(cluster.get("ConfigMap", name_of(run))):
        cleared = {"metadata": {"annotations": {_STARTING: None}}, "data": {_START: None}}
        cluster.patch("ConfigMap", name_of(run), cleared)


def undo(cluster: Cluster, lease: StartLease) -> None:
    """Put the record back as it was before a start that failed; nothing happens where the lease is lost.

    A final status of the previous run that was recorded since is kept, e.g. where it was stopped to be moved.
    """
    before = lease.before
    with contextlib.suppress(LeaseLostError):
        there = verify(cluster, lease)
        if before is None and (_started_by(there) == lease.id or not there.get("data")):
            cluster.delete("ConfigMap", name_of(lease.run), uid=there["metadata"]["uid"])
        else:
            _change(cluster, lease, lambda there: _annotated(_before(lease, there), {_STARTING: None}))


def being_started(record: Object | None, now: float) -> str:
    """Return which launcher starts a run at `now`, by the cluster's clock, as `started by ...`; empty if no start is in progress, or its launcher is known to be dead."""
    lease = _lease(record)
    try:
        age = now - float(lease["since"])
    except (KeyError, TypeError, ValueError):
        return ""
    # Another host or container may have the same name: its processes cannot be seen here.
    here = lease.get("host") == socket.gethostname() and lease.get("space") == process_identity.pid_namespace()
    died = here and _process(lease.get("pid")).get("born") != lease.get("born")
    return "" if died or age > _START_TIMEOUT else f"started by `launcher up` on {lease.get('host', '?')} since {max(0.0, age):.0f} s"


def owner(record: Object) -> Object:
    """Return the reference by which an object belongs to the record."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": record["metadata"]["name"], "uid": record["metadata"]["uid"]}


def spec(record: Object | None) -> dict[str, Any] | None:
    """Return the spec that the run was last started with, or None when it is not known."""
    return _document(record, _SPEC)


def digest(record: Object | None) -> str:
    """Return the digest of the spec that the run was last started with, empty where it is not known."""
    return str(((record or {}).get("data") or {}).get(_DIGEST, ""))


def claim(record: Object | None) -> str | None:
    """Return the uid of the claim that the run was last started with, or None when it is not known."""
    return ((record or {}).get("data") or {}).get(_CLAIM)


def claim_name(run: str, record: Object | None) -> str:
    """Return the name of the claim that a run was last started with."""
    section = (spec(record) or {}).get("kubernetes") or {}
    return str(section.get("claim") or run)


def things(record: Object | None) -> list[tuple[str, str, str]]:
    """Return kind, name and uid of the objects that the last start of a run has made, except its claim; none if they are not known."""
    return [(kind, name, uid) for kind, name, uid in json.loads(((record or {}).get("data") or {}).get(_MADE, "[]"))]


def user(record: Object | None) -> str:
    """Return the user who started the run last, empty when it is not known."""
    return str(((record or {}).get("data") or {}).get(_USER, ""))


def final(record: Object | None) -> RunStatus | None:
    """Return how the run has ended, where that was noted."""
    return _status(record, _STATUS)


def stopping(record: Object | None) -> RunStatus | None:
    """Return the final status recorded when a stop was requested; use it only once all pods are gone."""
    return _status(record, _STOPPING)


def roles(record: Object | None) -> frozenset[str]:
    """Return the roles of the run that was last started; none when they are not known."""
    return frozenset(role for role, one in ((spec(record) or {}).get("roles") or {}).items() if one)


def write_end(cluster: Cluster, status: RunStatus) -> None:
    """Record how a run has ended; do nothing if that is recorded, or the run has no record."""
    record = cluster.get("ConfigMap", name_of(status.name))
    if record is not None and final(record) is None:
        update_end(cluster, status)


def write_stopping(cluster: Cluster, status: RunStatus) -> None:
    """Record that a run is being stopped, and its status for when it has; do nothing if it has no record."""
    _write_status(cluster, status.name, {_STOPPING: dumped(status)})


def update_end(cluster: Cluster, status: RunStatus) -> None:
    """Record how a run has ended in place of an earlier entry; do nothing if the run has no record."""
    _write_status(cluster, status.name, {_STATUS: dumped(status), _STOPPING: None})


def _write_status(cluster: Cluster, run: str, data: dict[str, str | None]) -> None:
    if cluster.get("ConfigMap", name_of(run)) is not None:
        cluster.patch("ConfigMap", name_of(run), {"data": data})


def dumped(status: RunStatus) -> str:
    """Return a status as text, without the fields that depend on the user who asks."""
    fields = dataclasses.asdict(status)
    return as_json({key: value for key, value in fields.items() if key not in _ASKED})


def _made(cluster: Cluster, run: Run, data: dict[str, str]) -> Object:
    head = metadata(run, name_of(run.name), COMPONENT)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**head, "namespace": cluster.namespace}, "data": data}


def _text(lease: StartLease, now: float) -> str:
    """Return the lease as the record has it, of this moment and process."""
    return as_json({"id": lease.id, "host": socket.gethostname(), "since": now, **_process(os.getpid())})


def _lease(record: Object | None) -> dict[str, Any]:
    return json_object(_annotations(record).get(_STARTING, "")) or {}


def _started_by(record: Object | None) -> str | None:
    return ((record or {}).get("data") or {}).get(_START)


def _change(cluster: Cluster, lease: StartLease, change: Callable[[Object], Object]) -> Object:
    """Replace the record by what `change` makes of it as long as the lease is on it; return it. Raises LeaseLostError."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(_ChangedError):
            return _replace(cluster, lease, change)
    return _replace(cluster, lease, change)


class _ChangedError(LauncherError):
    """The record was changed since it was read."""


def _replace(cluster: Cluster, lease: StartLease, change: Callable[[Object], Object]) -> Object:
    there = verify(cluster, lease)
    made = change(there)
    version = {"resourceVersion": there["metadata"]["resourceVersion"]}
    try:
        return cluster.replace({**made, "metadata": {**made["metadata"], **version}})
    except LauncherError as error:
        if status_of(error) != 409:
            raise
        raise _ChangedError(error.message, error.remedy) from error


def _before(lease: StartLease, there: Object) -> Object:
    """Return the record of the run before: the one that is there until a start has written its own."""
    if lease.before is None or _started_by(there) != lease.id:
        return there
    head = {key: value for key, value in lease.before["metadata"].items() if key in {"name", "namespace", "labels", "annotations"}}
    return {**lease.before, "metadata": {**head, "uid": there["metadata"]["uid"]}}


def _annotated(record: Object, annotations: Mapping[str, str | None]) -> Object:
    """Return a record with these annotations, without those that are None."""
    merged = {key: value for key, value in {**_annotations(record), **annotations}.items() if value is not None}
    return {**record, "metadata": {**record["metadata"], "annotations": merged}}


def _process(pid: object) -> dict[str, Any]:
    """Return a process of this machine or container as it can be known again, empty when there is none."""
    found = process_identity.identify(pid) if isinstance(pid, int) else None
    return {} if found is None else {**dataclasses.asdict(found), "space": process_identity.pid_namespace()}


def _annotations(record: Object | None) -> dict[str, str]:
    return ((record or {}).get("metadata") or {}).get("annotations") or {}


def restored(text: str) -> RunStatus | None:
    """Return the status that was dumped as a text, None where it is none of this version's."""
    try:
        return run_status_of(json.loads(text))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _status(record: Object | None, key: str) -> RunStatus | None:
    return restored(((record or {}).get("data") or {}).get(key, ""))


def _document(record: Object | None, key: str) -> dict[str, Any] | None:
    return json_object(((record or {}).get("data") or {}).get(key, ""))
