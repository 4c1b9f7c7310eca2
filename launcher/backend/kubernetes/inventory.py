"""Comparison of a run with its record: whether its claim with its data is there, and each object that it is to have."""

import dataclasses
import time
from collections.abc import Iterable
from dataclasses import dataclass

from launcher.backend.kubernetes import diagnosis, ended_status, pod_status, run_record, status_source
from launcher.backend.kubernetes.client import Cluster, Object
from launcher.backend.kubernetes.errors import ForbiddenError
from launcher.plan import role_rules
from launcher.render.kubernetes.objects import ATTENDANT
from launcher.runs.status import ENDED, Loss, RunStatus, State, TaskStatus

# Those of a run's kinds that start tasks. They are made, never changed: one that is there is another launcher's.
WORKLOADS = frozenset({"JobSet", "Job"})
_EVERY = 60.0  # seconds
_CLAIM = "PersistentVolumeClaim"
_NOT_FOUND = "its Job is not found"
_BESIDE = ("-evaluator", f"-{ATTENDANT}")  # Jobs without which a run trains all the same


@dataclass(frozen=True)
class ObjectRef:
    """One object as it was made: another one of its name has another uid."""

    kind: str
    name: str
    uid: str

    def __str__(self) -> str:
        """Return how kubectl names it."""
        return f"{self.kind.lower()}/{self.name}"


@dataclass(frozen=True)
class Found:
    """Differences from the record: why the data is lost, which objects are gone, and which have lost the run's labels."""

    loss: Loss | None = None
    gone: tuple[ObjectRef, ...] = ()
    strays: tuple[ObjectRef, ...] = ()
    tasks: tuple[str, ...] = ()  # that the run is to have


class Watch:
    """Compares one run with its record again and again, not more often than is worth it."""

    def __init__(self, cluster: Cluster, run: str) -> None:
        self._cluster, self._run = cluster, run
        self.noted: Object | None = None  # the record, as it was read last
        self._found = Found()
        self._next = 0.0

    def look(self) -> Found:
        """Return what is not as the record says, nothing where that does not say. Raises LauncherError."""
        if time.monotonic() >= self._next:
            try:
                self._found = self._look()
            except ForbiddenError:  # who may not look at all of it is told the rest
                self._found = Found()
            self._next = time.monotonic() + _EVERY
        return self._found

    def _look(self) -> Found:
        self.noted = noted = self._cluster.get("ConfigMap", run_record.name_of(self._run))
        if run_record.being_started(noted, self._cluster.now()):  # what it notes is still the last one's
            return Found()
        uid, name = run_record.claim(noted), run_record.claim_name(self._run, noted)
        lost = None if uid is None else loss(name, uid, self._cluster.get(_CLAIM, name))
        if run_record.announced(noted) is not None:  # it is being stopped
            return Found(lost)
        there = {(one.kind, one.name) for kind in {one.kind for one in made(noted)} for one in labelled(self._cluster, self._run, kind)}
        missed = [one for one in made(noted) if (one.kind, one.name) not in there]
        found = strays(self._cluster, missed)
        left = [one for one, thing in found.items() if not is_over(thing)]
        expire = {"Job"} if ((run_record.spec(noted) or {}).get("kubernetes") or {}).get("ttl") else set()
        gone = tuple(one for one in missed if one not in found and one.kind not in expire)
        return Found(lost, gone, tuple(left), tuple(ended_status.tasks(noted)))


def loss(name: str, uid: str, there: Object | None) -> Loss | None:
    """Return why the data on the claim of that uid is lost, by what is `there` under its name. Pure."""
    if there is None:
        return Loss("deleted", f"the claim {name} was deleted, and what the run had stored there with it")
    head = there["metadata"]
    if head["uid"] != uid:
        made = f" (made {head['creationTimestamp']})" if head.get("creationTimestamp") else ""
        return Loss(
            "replaced",
            f"the claim {name} was deleted and made again{made}: what the run had stored is not on it, unless somebody has restored it",
        )
    if head.get("deletionTimestamp"):
        return Loss("deleting", f"the claim {name} is being deleted: with the last pod that uses it goes all that the run has stored")
    return None


def is_over(thing: Object) -> bool:
    """Return whether it is a Job, or a JobSet, that has ended: nobody minds its labels any more."""
    return any(pod_status.condition(thing, kind) for kind in ("Complete", "Completed", "Failed"))


def made(noted: Object | None) -> list[ObjectRef]:
    """Return what the last start of a run has made but its claim, by its record; nothing while it starts."""
    return [ObjectRef(*one) for one in run_record.things(noted)]


def labelled(cluster: Cluster, run: str, kind: str) -> Iterable[ObjectRef]:
    """Yield the objects of a kind that have the run's labels, a Job that of its role or of the attendant too."""
    listed = (cluster.listed_if_any if kind == "JobSet" else cluster.listed)(kind, status_source.labels_of(run))
    return (
        ObjectRef(kind, one["metadata"]["name"], one["metadata"]["uid"])
        for one in listed
        if kind != "Job" or pod_status.is_role(one) or pod_status.role_of(one) == ATTENDANT
    )


def strays(cluster: Cluster, missed: Iterable[ObjectRef]) -> dict[ObjectRef, Object]:
    """Return those of a run's things that are there, though they were not found by their labels."""
    there = {one: cluster.get(one.kind, one.name) for one in missed}
    return {one: found for one, found in there.items() if found is not None and found["metadata"]["uid"] == one.uid}


def compared(status: RunStatus, found: Found, namespace: str) -> RunStatus:
    """Return the status of a run with what is not as its record says. Pure."""
    status = dataclasses.replace(status, data_lost=found.loss)
    hidden = [one for one in found.strays if one.kind in WORKLOADS]
    if (status.state in ENDED and not hidden) or not (found.gone or found.strays):
        return status
    lacking = [one for one in (*found.gone, *hidden) if one.kind in WORKLOADS]
    stands_still = any(not one.name.endswith(_BESIDE) for one in lacking)
    there = {task.name for task in status.tasks}
    tasks = [*status.tasks, *(TaskStatus(name, State.STOPPED, _NOT_FOUND) for name in found.tasks if name not in there)]
    return dataclasses.replace(
        status,
        state=State.PENDING if stands_still else status.state,
        eta=None if stands_still else status.eta,
        reason=_words(status.name, found, namespace),
        tasks=tuple(sorted(tasks, key=lambda task: role_rules.ROLE_ORDER.index(task.name.partition("-")[0]))),
        missing=tuple(map(str, (*found.gone, *found.strays))),
    )


def _words(run: str, found: Found, namespace: str) -> str:
    said = []
    if found.gone:
        names = ", ".join(map(str, found.gone))
        said.append(f"{names} {'was' if len(found.gone) == 1 else 'were'} deleted: {diagnosis.made_again(run)}")
    for one in found.strays:
        labels = status_source.labels_of(run) | ({pod_status.COMPONENT: one.name.removeprefix(f"{run}-")} if one.kind == "Job" else {})
        given = " ".join(f"{key}={value}" for key, value in labels.items())
        said.append(f"{one} has lost its labels: kubectl label {one} {given} --overwrite -n {namespace}")
    return "; ".join(said)
