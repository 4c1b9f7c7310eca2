"""Comparison of a run with its record: whether its claim with its data is there, and each object that it is to have."""

import time
from collections.abc import Iterable, Sequence

from launcher.backend.kubernetes import diagnosis, ended_status, pod_status, run_record, status_source
from launcher.backend.kubernetes.client import Cluster, Object
from launcher.backend.kubernetes.errors import ForbiddenError
from launcher.backend.kubernetes.run_context import Differences, ObjectRef
from launcher.render.kubernetes.objects import ATTENDANT
from launcher.runs.status import Loss

_COMPARE_INTERVAL = 60.0  # seconds
_CLAIM = "PersistentVolumeClaim"


class ObjectWatch:
    """Compares one run with its record again and again, at most once a minute."""

    def __init__(self, cluster: Cluster, run: str) -> None:
        self._cluster, self._run = cluster, run
        self.record: Object | None = None  # the record, as it was read last
        self._found = Differences()
        self._next = 0.0

    def differences(self) -> Differences:
        """Return the differences from the record; none if it says nothing. Raises LauncherError."""
        if time.monotonic() >= self._next:
            try:
                self._found = self._compare()
            except ForbiddenError:  # a user who may not see all of it sees the rest
                self._found = Differences()
            self._next = time.monotonic() + _COMPARE_INTERVAL
        return self._found

    def _compare(self) -> Differences:
        self.record = record = self._cluster.get("ConfigMap", run_record.name_of(self._run))
        if run_record.being_started(record, self._cluster.now()):  # its notes are still the last run's
            return Differences()
        uid, name = run_record.claim(record), run_record.claim_name(self._run, record)
        lost = None if uid is None else loss(name, uid, self._cluster.get(_CLAIM, name))
        if run_record.stopping(record) is not None:  # it is being stopped
            return Differences(lost)
        there = {(one.kind, one.name) for kind in {one.kind for one in made(record)} for one in labelled(self._cluster, self._run, kind)}
        missed = [one for one in made(record) if (one.kind, one.name) not in there]
        found = unlabelled(self._cluster, missed)
        left = [one for one, thing in found.items() if not is_over(thing)]
        expire = {"Job"} if ((run_record.spec(record) or {}).get("kubernetes") or {}).get("ttl") else set()
        deleted = tuple(one for one in missed if one not in found and one.kind not in expire)
        return Differences(
            lost, deleted, tuple(left), tuple(ended_status.tasks(record)), reason(self._run, deleted, left, self._cluster.namespace)
        )


def loss(name: str, uid: str, there: Object | None) -> Loss | None:
    """Return why the data on the claim of that uid is lost, by the claim that is `there` under its name. Pure."""
    if there is None:
        return Loss("deleted", f"the claim {name} was deleted, and the files of the run with it")
    head = there["metadata"]
    if head["uid"] != uid:
        made = f" (made {head['creationTimestamp']})" if head.get("creationTimestamp") else ""
        return Loss(
            "replaced",
            f"the claim {name} was deleted and made again{made}: the files of the run are not on it, unless somebody has restored them",
        )
    if head.get("deletionTimestamp"):
        return Loss("deleting", f"the claim {name} is being deleted: with the last pod that uses it go all files of the run")
    return None


def is_over(thing: Object) -> bool:
    """Return whether it is a Job, or a JobSet, that has ended: its labels do not matter any more."""
    return any(pod_status.condition(thing, kind) for kind in ("Complete", "Completed", "Failed"))


def made(record: Object | None) -> list[ObjectRef]:
    """Return the objects that the last start of a run has made, except its claim, by its record; none while it starts."""
    return [ObjectRef(*one) for one in run_record.things(record)]


def labelled(cluster: Cluster, run: str, kind: str) -> Iterable[ObjectRef]:
    """Yield the objects of a kind that have the run's labels, a Job that of its role or of the attendant too."""
    listed = (cluster.listed_if_any if kind == "JobSet" else cluster.listed)(kind, status_source.labels_of(run))
    return (
        ObjectRef(kind, one["metadata"]["name"], one["metadata"]["uid"])
        for one in listed
        if kind != "Job" or pod_status.is_role(one) or pod_status.role_of(one) == ATTENDANT
    )


def unlabelled(cluster: Cluster, missed: Iterable[ObjectRef]) -> dict[ObjectRef, Object]:
    """Return those of a run's things that are there, though they were not found by their labels."""
    there = {one: cluster.get(one.kind, one.name) for one in missed}
    return {one: found for one, found in there.items() if found is not None and found["metadata"]["uid"] == one.uid}


def reason(run: str, deleted: Sequence[ObjectRef], unlabelled: Iterable[ObjectRef], namespace: str) -> str:
    """Return which of a run's objects are gone or have lost its labels, and what to do about each. Pure."""
    reasons = []
    if deleted:
        reasons.append(f"{', '.join(map(str, deleted))} {'was' if len(deleted) == 1 else 'were'} deleted: {diagnosis.recreate_remedy(run)}")
    for one in unlabelled:
        labels = status_source.labels_of(run) | ({pod_status.COMPONENT: one.name.removeprefix(f"{run}-")} if one.kind == "Job" else {})
        given = " ".join(f"{key}={value}" for key, value in labels.items())
        reasons.append(f"{one} has lost its labels: kubectl label {one} {given} --overwrite -n {namespace}")
    return "; ".join(reasons)
