"""A run's objects onto the cluster: checked by the API server before anything is made, then applied in order, all or none."""

import copy
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from launcher import images
from launcher.backend.kubernetes import look, observe, record
from launcher.backend.kubernetes.api import KINDS, Cluster, Object, status_of
from launcher.backend.model import ENDED
from launcher.errors import LauncherError, UsageError
from launcher.render.kubernetes import manifests
from launcher.render.kubernetes.objects import Run

# Kinds of which the run's record owns each object, in the order in which they are deleted: first who works, then what is worked with.
OWNED = ("Job", "Deployment", "Service", "NetworkPolicy", "ConfigMap")
_GONE_WITHIN = 120.0  # seconds in which deleted pods have ended by themselves or been killed
_LOOK_EVERY = 0.5


def objects(run: Run, cluster: Cluster) -> list[Object]:
    """Return the run's objects in the order to apply them, in the cluster's namespace."""
    made: list[Object] = copy.deepcopy(manifests.objects(run))
    for one in made:
        one["metadata"]["namespace"] = cluster.namespace
    return made


def check(cluster: Cluster, run: Run) -> Iterator[str]:
    """Let the API server check every object as if it were applied; yield what a person should know.

    Raises LauncherError with what it refuses; nothing has been made then.
    """
    made = objects(run, cluster)
    _refuse_claim_of_others(cluster, run)
    yield f"{cluster.words()}; its nodes need the image {run.image}" + (
        f" ({images.build_command(run.image)} makes it)" if images.is_ours(run.image) else ""
    )
    yield from manifests.notes(run, [])
    for one in made:
        dry_run(cluster, one)


def dry_run(cluster: Cluster, made: Object) -> Object:
    """Return an object as the API server would have it after it was applied. Raises LauncherError with what it refuses."""
    if made["kind"] != "Job":
        return cluster.apply(made, dry_run=True)
    # By another name: one of an earlier start may be there, and cannot be changed.
    named = {key: value for key, value in made["metadata"].items() if key != "name"}
    return cluster.create({**made, "metadata": {**named, "generateName": f"{made['metadata']['name']}-"}}, dry_run=True)


def start(cluster: Cluster, run: Run, spec: dict[str, Any]) -> None:
    """Apply the run's objects. Raises LauncherError when one is refused; what this has made is removed again then.

    Raises UsageError when the run is at work, or when another launcher starts it: of two, one gets the record, the other changes nothing.
    """
    made = objects(run, cluster)
    before = cluster.get("ConfigMap", record.name_of(run.name))
    _refuse_at_work(cluster, run.name)
    _refuse_claim_of_others(cluster, run)
    begun = record.begin(cluster, run, spec, before)
    new: list[tuple[str, str]] = []  # what is not the record's, and was not there
    try:
        _clear(cluster, run.name)
        if run.own_claim and _is_new(cluster, "PersistentVolumeClaim", run.claim):
            new.append(("PersistentVolumeClaim", run.claim))
        owner = record.owner(begun.record)
        for one in made:
            if one["kind"] != "PersistentVolumeClaim":
                one["metadata"]["ownerReferences"] = [owner]
            cluster.apply(one)
    except BaseException as error:
        left = _undo(cluster, begun, new)
        if left and isinstance(error, LauncherError):
            error.remedy += f"; what was made could not all be removed again ({left}): launcher down {run.name} --on kubernetes"
        raise
    record.free(cluster, run.name)
    _prune(cluster, run.name, {(one["kind"], one["metadata"]["name"]) for one in made})


def _refuse_claim_of_others(cluster: Cluster, run: Run) -> None:
    """Raise UsageError where a claim has the name of the run's and was not made for it: applied over, it would be deleted with the run."""
    claim = cluster.get("PersistentVolumeClaim", run.claim) if run.own_claim else None
    if claim is not None and claim["metadata"].get("labels", {}).get(observe.INSTANCE) != run.name:
        raise UsageError(
            f"the claim {run.claim} in {cluster.words()} was not made for this run",
            f"name it in the file, kubernetes: {{claim: {run.claim}}}, and the run keeps to a directory of its own on it; or name the run otherwise",
        )


def _is_new(cluster: Cluster, kind: str, name: str) -> bool:
    """Tell whether an object is not there; one that is being deleted is waited for until it is not."""
    there = cluster.get(kind, name)
    if there is not None and there["metadata"].get("deletionTimestamp"):
        await_deleted(cluster, kind, name)
        return True
    return there is None


def _undo(cluster: Cluster, begun: record.Start, new: list[tuple[str, str]]) -> str:
    """Remove what a start has made that came to nothing; return what could not be removed and why, empty where all was.

    Nothing is touched once another launcher has taken the run over: the objects are that one's.
    """
    failed = []
    steps: list[Callable[[], None]] = [
        lambda: remove(cluster, begun.run),
        *(functools.partial(cluster.delete, kind, name) for kind, name in new),
        lambda: record.undo(cluster, begun),
    ]
    try:
        if not record.is_ours(cluster, begun):
            return ""
    except LauncherError as error:  # the first error is the one to tell
        return error.message
    for step in steps:
        try:
            step()
        except LauncherError as error:
            failed.append(error.message)
    return "; ".join(failed)


def remove(cluster: Cluster, run: str) -> None:
    """Delete the run's objects and wait until its pods are gone. Its record and its data stay."""
    for kind in OWNED:
        for one in cluster.listed(kind, look.labels_of(run)):
            if one["metadata"]["name"] != record.name_of(run):
                cluster.delete(kind, one["metadata"]["name"])
    await_gone(cluster, run, _GONE_WITHIN)


def await_gone(cluster: Cluster, run: str, within: float) -> None:
    """Wait until no pod of the run's tasks is left. Raises LauncherError with those that are after `within` seconds."""
    deadline = time.monotonic() + within
    while pods := look.pods_of(cluster, run):
        if time.monotonic() > deadline:
            names = ", ".join(str(pod["metadata"]["name"]) for pod in pods[:5])
            raise LauncherError(
                f"pods of {run} are still there after {within:.0f} s: {names}",
                "their node may be lost: kubectl get nodes; docs/kubernetes.md, A node lost, says how to give them up",
            )
        time.sleep(_LOOK_EVERY)


def await_deleted(cluster: Cluster, kind: str, name: str) -> None:
    """Wait until an object that was deleted is gone. Raises LauncherError when it is there still."""
    deadline = time.monotonic() + _GONE_WITHIN
    while cluster.get(kind, name) is not None:
        if time.monotonic() > deadline:
            raise LauncherError(
                f"the {kind} {name} is still there {_GONE_WITHIN:.0f} s after it was deleted",
                f"something uses it: kubectl describe {KINDS[kind][1]} {name} -n {cluster.namespace}",
            )
        time.sleep(_LOOK_EVERY)


def _refuse_at_work(cluster: Cluster, run: str) -> None:
    """Raise UsageError when Jobs of the run are at work, or wait for a node or a queue."""
    seen = look.gather(cluster, run)
    if seen.jobs and look.judged(observe.status(seen, time.time()), ready=False).state not in ENDED:
        names = ", ".join(job["metadata"]["name"] for job in seen.jobs)
        raise UsageError(f"{run} runs already in {cluster.words()}: {names}", f"stop it first: launcher down {run} --on kubernetes")


def _clear(cluster: Cluster, run: str) -> None:
    """Delete the Jobs of an earlier start, which cannot be changed."""
    jobs = cluster.listed("Job", look.labels_of(run))
    for job in jobs:
        cluster.delete("Job", job["metadata"]["name"])
    if jobs:
        await_gone(cluster, run, _GONE_WITHIN)
        _await_no_jobs(cluster, run)


def _await_no_jobs(cluster: Cluster, run: str) -> None:
    deadline = time.monotonic() + _GONE_WITHIN
    while cluster.listed("Job", look.labels_of(run)):
        if time.monotonic() > deadline:
            raise LauncherError(
                f"the Jobs of {run} are still there {_GONE_WITHIN:.0f} s after they were deleted", "see kubectl get jobs -o yaml"
            )
        time.sleep(_LOOK_EVERY)


def _prune(cluster: Cluster, run: str, used: set[tuple[str, str]]) -> None:
    """Delete what earlier starts have made and this one has no use for: other code, a TensorBoard that is not wanted any more."""
    for kind in OWNED:
        for one in cluster.listed(kind, look.labels_of(run)):
            name = one["metadata"]["name"]
            if (kind, name) not in used and name != record.name_of(run):
                try:
                    cluster.delete(kind, name)
                except LauncherError as error:
                    if status_of(error) != 403:  # without that right it is merely left behind
                        raise
