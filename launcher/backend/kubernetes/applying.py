"""A run's objects onto the cluster: checked by the API server before anything is made, then applied in order, all or none."""

import contextlib
import copy
import time
from collections.abc import Iterator
from typing import Any

from launcher import images
from launcher.backend.kubernetes import look, record
from launcher.backend.kubernetes.api import Cluster, Object, status_of
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
    """Apply the run's objects. Raises LauncherError when one is refused; what this has made is removed again then."""
    made = objects(run, cluster)
    _clear(cluster, run.name)
    new = [
        (kind, name)
        for kind, name in (("ConfigMap", record.name_of(run.name)), ("PersistentVolumeClaim", run.claim))
        if cluster.get(kind, name) is None
    ]
    owner = record.owner(record.write(cluster, run, spec))
    try:
        for one in made:
            if one["kind"] != "PersistentVolumeClaim":
                one["metadata"]["ownerReferences"] = [owner]
            cluster.apply(one)
    except BaseException:
        with contextlib.suppress(LauncherError):  # the first refusal is the one to tell
            remove(cluster, run.name)
            for kind, name in new:
                cluster.delete(kind, name)
        raise
    _prune(cluster, run.name, {one["metadata"]["name"] for one in made if one["kind"] == "ConfigMap"})


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


def _clear(cluster: Cluster, run: str) -> None:
    """Delete the Jobs of an earlier start, which cannot be changed. Raises UsageError when they are still at work."""
    jobs = cluster.listed("Job", look.labels_of(run))
    at_work = [job["metadata"]["name"] for job in jobs if job.get("status", {}).get("active") and not _over(jobs)]
    if at_work:
        raise UsageError(
            f"{run} runs already in {cluster.words()}: {', '.join(at_work)}", f"stop it first: launcher down {run} --on kubernetes"
        )
    for job in jobs:
        cluster.delete("Job", job["metadata"]["name"])
    if jobs:
        await_gone(cluster, run, _GONE_WITHIN)
        _await_no_jobs(cluster, run)


def _over(jobs: list[Object]) -> bool:
    """Tell whether the run has failed: what is left of it only ends."""
    return any(
        one.get("type") == "Failed" and one.get("status") == "True" for job in jobs for one in job.get("status", {}).get("conditions") or ()
    )


def _await_no_jobs(cluster: Cluster, run: str) -> None:
    deadline = time.monotonic() + _GONE_WITHIN
    while cluster.listed("Job", look.labels_of(run)):
        if time.monotonic() > deadline:
            raise LauncherError(
                f"the Jobs of {run} are still there {_GONE_WITHIN:.0f} s after they were deleted", "see kubectl get jobs -o yaml"
            )
        time.sleep(_LOOK_EVERY)


def _prune(cluster: Cluster, run: str, used: set[str]) -> None:
    """Delete code of earlier starts."""
    for one in cluster.listed("ConfigMap", look.labels_of(run)):
        name = one["metadata"]["name"]
        if name not in used and name != record.name_of(run):
            try:
                cluster.delete("ConfigMap", name)
            except LauncherError as error:
                if status_of(error) != 403:  # without that right it is merely left behind
                    raise
