"""What a pod does and ends: a run's directory moved aside or removed, on a volume that nothing else sees; or a probe of the cluster."""

import math
import time

from launcher.backend.kubernetes import look, observe, trouble
from launcher.backend.kubernetes.api import Cluster, Object
from launcher.errors import LauncherError
from launcher.plan.places import CONTAINER_RUNS
from launcher.render.kubernetes import pods, storage
from launcher.render.kubernetes.objects import TRAINER, Run, metadata

COMPONENT = "housekeeping"
# What little it takes, said so that a quota admits it.
_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}
_WITHIN = 300.0  # seconds, an image that is pulled first and a node that is added for it included
# What keeps a pod from starting that seldom mends itself, and for how many seconds it is waited for nevertheless.
_HOPE: dict[str, float] = {"image": 20.0, "config": 20.0}
_PROBE_HOPE = {**_HOPE, "nodes": 60.0}  # who only asks does not wait for what may come
_LOOK_EVERY = 0.5


def move_aside(cluster: Cluster, run: Run, aside: str) -> None:
    """Rename the run's directory on its volume; nothing happens where it is not there."""
    source, target = f"{CONTAINER_RUNS}/{run.name}", f"{CONTAINER_RUNS}/{aside}"
    _do(cluster, run, ["sh", "-c", f"if [ -e '{source}' ]; then mv '{source}' '{target}'; fi"], "moving its data aside", _HOPE)


def remove(cluster: Cluster, run: Run) -> None:
    """Remove the run's directory from a volume that is not its own alone; nothing happens where the claim is not there."""
    if cluster.get("PersistentVolumeClaim", run.claim) is not None:
        _do(cluster, run, ["rm", "-rf", f"{CONTAINER_RUNS}/{run.name}"], "deleting its data", _HOPE)


def probe(cluster: Cluster, run: Run, command: list[str]) -> None:
    """Run a command in the run's image. Raises LauncherError with why it did not start, or did not succeed."""
    _do(cluster, run, command, "starting a pod", _PROBE_HOPE, mounted=False)


def tidy(cluster: Cluster, run: str) -> None:
    """Delete the run's pods of this kind that have ended and whose launcher was killed: a claim that one has mounted cannot go."""
    for pod in cluster.listed("Pod", {**look.labels_of(run), observe.COMPONENT: COMPONENT}):
        if pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
            cluster.delete("Pod", pod["metadata"]["name"], uid=pod["metadata"]["uid"])


def _do(cluster: Cluster, run: Run, command: list[str], doing: str, hope: dict[str, float], *, mounted: bool = True) -> None:
    made = _pod(run, command, mounted=mounted)
    made["metadata"]["namespace"] = cluster.namespace
    name = str(cluster.create(made)["metadata"]["name"])
    try:
        _await_success(cluster, name, doing, hope)
    finally:
        cluster.delete("Pod", name, grace=1)


def _pod(run: Run, command: list[str], *, mounted: bool) -> Object:
    volume, mount = pods.tmp()
    mounts, volumes = ([storage.mount(), mount], [storage.volume(run), volume]) if mounted else ([mount], [volume])
    container = pods.container(run, TRAINER, command) | {"resources": _RESOURCES, "volumeMounts": mounts}
    head = metadata(run, f"{run.name}-{COMPONENT}", COMPONENT)
    head["generateName"] = f"{head.pop('name')}-"  # one for each use: two may be at work at once
    spec = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": math.ceil(_WITHIN),  # also where whoever made it was killed
        **pods.hardened(run),
        **pods.placed(run.options),
        "containers": [container],
        "volumes": volumes,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": spec}


def _await_success(cluster: Cluster, name: str, doing: str, hope: dict[str, float]) -> None:
    began = time.monotonic()
    while True:
        pod = cluster.get("Pod", name)
        if pod is None:
            raise LauncherError(f"{doing}: the pod {name} was deleted, or evicted, before it was done", "try again; see kubectl get events")
        phase = pod.get("status", {}).get("phase")
        if phase == "Succeeded":
            return
        waited = time.monotonic() - began
        found = trouble.of_pod(pod)
        hopeless = found is not None and waited > (_HOPE["config"] if found.final else hope.get(found.kind, _WITHIN))
        if phase == "Failed" or hopeless or waited > _WITHIN:
            why = found.words if found else f"it is {phase} after {_WITHIN:.0f} s"
            raise LauncherError(
                f"{doing}: the pod {name} did not succeed: {why}", found.remedy if found else f"see kubectl describe pod {name}"
            )
        time.sleep(_LOOK_EVERY)
