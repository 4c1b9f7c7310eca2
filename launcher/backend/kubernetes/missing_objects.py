"""The recorded objects of a run that are missing in the cluster, its claim included."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from launcher.backend.kubernetes import diagnosis, pod_status, run_record, status_reader, status_without_jobs
from launcher.backend.kubernetes.client import Cluster, Object
from launcher.backend.kubernetes.errors import ForbiddenError
from launcher.backend.kubernetes.object_fields import is_being_deleted
from launcher.backend.kubernetes.run_context import ACCOUNT_KINDS, OPTIONAL_KINDS, MissingObjects, ObjectRef
from launcher.render.kubernetes.objects import ATTENDANT, COMPONENT_LABEL
from launcher.runs.status import DataLoss

_COMPARE_INTERVAL = 60.0  # seconds
_CLAIM = "PersistentVolumeClaim"


class MissingObjectsWatch:
    """Compares the objects of one run with its record once a minute, and when it has other Jobs."""

    def __init__(self, cluster: Cluster, run: str) -> None:
        self._cluster, self._run = cluster, run
        self.record: Object | None = None  # as last read
        self._missing = MissingObjects()
        self._next, self._jobs = 0.0, frozenset[str]()

    def check(self, jobs: Iterable[Mapping[str, Any]] = ()) -> MissingObjects:
        """Return the recorded objects that are missing; none if the record says nothing. Raises LauncherError.

        Read the record again if `jobs`, which the run has now, are not those of the last call: the run may have been started again.
        """
        uids = frozenset(job["metadata"]["uid"] for job in jobs)
        if uids != self._jobs or time.monotonic() >= self._next:
            self._jobs = uids
            try:
                self._missing = self._compare()
            except ForbiddenError:  # without the right to read all objects, none counts as missing
                self._missing = MissingObjects()
            self._next = time.monotonic() + _COMPARE_INTERVAL
        return self._missing

    def _compare(self) -> MissingObjects:
        self.record = record = self._cluster.get("ConfigMap", run_record.name_of(self._run))
        if run_record.starting_launcher(record, self._cluster.now()):  # the record still lists the objects of the earlier start
            return MissingObjects()
        uid, name = run_record.claim_uid(record), run_record.claim_name(self._run, record)
        loss = None if uid is None else data_loss(name, uid, self._cluster.get(_CLAIM, name))
        if run_record.stopping(record) is not None:  # it is being stopped
            return MissingObjects(loss)
        present = {
            (ref.kind, ref.name)
            for kind in {ref.kind for ref in run_record.recorded_objects(record)}
            for ref in labelled(self._cluster, self._run, kind)
        }
        missing = [ref for ref in run_record.recorded_objects(record) if (ref.kind, ref.name) not in present]
        current = read_objects(self._cluster, missing)  # None: deleted; else it has lost its labels
        active = [ref for ref, obj in current.items() if obj is not None and not pod_status.job_has_ended(obj)]
        expire = {"Job"} if ((run_record.spec(record) or {}).get("kubernetes") or {}).get("ttl") else set()
        deleted = tuple(ref for ref, obj in current.items() if obj is None and ref.kind not in expire)
        tasks = tuple(status_without_jobs.task_names(record))
        return MissingObjects(loss, deleted, tuple(active), tasks, reason(self._run, deleted, active, self._cluster.namespace))


def data_loss(name: str, uid: str, current: Object | None) -> DataLoss | None:
    """Return why the data on the claim with that uid is lost; `current` is the claim that has its name now. Pure."""
    if current is None:
        return DataLoss("deleted", f"the claim {name} was deleted, and the files of the run with it")
    metadata = current["metadata"]
    if metadata["uid"] != uid:
        created = f" (created {metadata['creationTimestamp']})" if metadata.get("creationTimestamp") else ""
        return DataLoss(
            "replaced",
            f"the claim {name} was deleted and created again{created}: the files of the run are not on it, unless they were restored",
        )
    if is_being_deleted(current):
        return DataLoss("deleting", f"the claim {name} is being deleted: all files of the run are deleted when its last pod ends")
    return None


def labelled(cluster: Cluster, run: str, kind: str) -> Iterable[ObjectRef]:
    """Yield the objects of a kind that have the run's labels; a Job must also have that of a role or of the attendant."""
    return (
        ObjectRef.of(kind, obj)
        for obj in list_kind(cluster, run, kind)
        if kind != "Job" or pod_status.is_role(obj) or pod_status.role_of(obj) == ATTENDANT
    )


def list_kind(cluster: Cluster, run: str, kind: str) -> list[Object]:
    """Return the objects of a kind with the run's labels; none of a kind that the cluster may lack, or that the user may not list."""
    return (cluster.list_or_empty if kind in OPTIONAL_KINDS else cluster.list_objects)(kind, status_reader.labels_of(run))


def read_objects(cluster: Cluster, refs: Iterable[ObjectRef]) -> dict[ObjectRef, Object | None]:
    """Return these objects by name, None for one that does not exist; those of an attendant that the user may not read are left out."""
    found: dict[ObjectRef, Object | None] = {}
    for ref in refs:
        try:
            current = cluster.get(ref.kind, ref.name)
        except ForbiddenError:
            if ref.kind not in ACCOUNT_KINDS:
                raise
            continue
        found[ref] = current if current is not None and current["metadata"]["uid"] == ref.uid else None
    return found


def reason(run: str, deleted: Sequence[ObjectRef], unlabelled: Iterable[ObjectRef], namespace: str) -> str:
    """Return the message about deleted and unlabelled objects of a run, with the remedy for each. Pure."""
    reasons = []
    if deleted:
        reasons.append(f"{', '.join(map(str, deleted))} {'was' if len(deleted) == 1 else 'were'} deleted: {diagnosis.recreate_remedy(run)}")
    for ref in unlabelled:
        labels = status_reader.labels_of(run) | ({COMPONENT_LABEL: ref.name.removeprefix(f"{run}-")} if ref.kind == "Job" else {})
        given = " ".join(f"{key}={value}" for key, value in labels.items())
        reasons.append(f"{ref} has lost its labels: kubectl label {ref} {given} --overwrite -n {namespace}")
    return "; ".join(reasons)
