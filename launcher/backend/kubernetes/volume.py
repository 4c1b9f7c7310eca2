"""What a pod does and ends: a run's directory moved aside or removed, on a volume that nothing else sees; or a probe of the cluster."""

import time

from launcher.backend.kubernetes import trouble
from launcher.backend.kubernetes.api import Cluster, Object
from launcher.errors import LauncherError
from launcher.plan.places import CONTAINER_RUNS
from launcher.render.kubernetes import pods, storage
from launcher.render.kubernetes.objects import TRAINER, Run, metadata

COMPONENT = "housekeeping"
_WITHIN = 300.0  # seconds, an image that is pulled first included
# What keeps a pod from starting that seldom mends itself, and for how many seconds it is waited for nevertheless.
_HOPELESS = frozenset({"image", "config", "nodes"})
_HOPE = 20.0
_LOOK_EVERY = 0.5


def move_aside(cluster: Cluster, run: Run, aside: str) -> None:
    """Rename the run's directory on its volume; nothing happens where it is not there."""
    source, target = f"{CONTAINER_RUNS}/{run.name}", f"{CONTAINER_RUNS}/{aside}"
    _do(cluster, run, ["sh", "-c", f"if [ -e '{source}' ]; then mv '{source}' '{target}'; fi"], "moving its data aside")


def remove(cluster: Cluster, run: Run) -> None:
    """Remove the run's directory from a volume that is not its own alone."""
    _do(cluster, run, ["rm", "-rf", f"{CONTAINER_RUNS}/{run.name}"], "deleting its data")


def probe(cluster: Cluster, run: Run, command: list[str]) -> None:
    """Run a command in the run's image. Raises LauncherError with why it did not start, or did not succeed."""
    _do(cluster, run, command, "starting a pod", mounted=False)


def _do(cluster: Cluster, run: Run, command: list[str], doing: str, *, mounted: bool = True) -> None:
    made = _pod(run, command, mounted=mounted)
    made["metadata"]["namespace"] = cluster.namespace
    name = made["metadata"]["name"]
    cluster.delete("Pod", name, grace=1)
    _await_gone(cluster, name)
    cluster.create(made)
    try:
        _await_success(cluster, name, doing)
    finally:
        cluster.delete("Pod", name, grace=1)


def _pod(run: Run, command: list[str], *, mounted: bool) -> Object:
    volume, mount = pods.tmp()
    mounts, volumes = ([storage.mount(), mount], [storage.volume(run), volume]) if mounted else ([mount], [volume])
    container = pods.container(run, TRAINER, command) | {"volumeMounts": mounts}
    head = metadata(run, f"{run.name}-{COMPONENT}", COMPONENT)
    placed: Object = {"nodeSelector": dict(run.options.node_selector)} if run.options.node_selector else {}
    if run.options.tolerations:
        placed["tolerations"] = [one.model_dump(exclude_none=True) for one in run.options.tolerations]
    spec = {
        "restartPolicy": "Never",
        **pods.hardened(run),
        **placed,
        "containers": [container],
        "volumes": volumes,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": spec}


def _await_success(cluster: Cluster, name: str, doing: str) -> None:
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
        hopeless = found is not None and (found.final or found.kind in _HOPELESS) and waited > _HOPE
        if phase == "Failed" or hopeless or waited > _WITHIN:
            why = found.words if found else f"it is {phase} after {_WITHIN:.0f} s"
            raise LauncherError(
                f"{doing}: the pod {name} did not succeed: {why}", found.remedy if found else f"see kubectl describe pod {name}"
            )
        time.sleep(_LOOK_EVERY)


def _await_gone(cluster: Cluster, name: str) -> None:
    deadline = time.monotonic() + _WITHIN
    while cluster.get("Pod", name) is not None and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY)
