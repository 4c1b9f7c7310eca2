"""Pods that help with a run's volume: one renames the run's directory or removes it, one serves it to read; or a probe of the cluster."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Mapping

from launcher.backend.kubernetes import diagnosis, pod_status, status_source
from launcher.backend.kubernetes.client import Cluster, Object
from launcher.errors import LauncherError, UsageError
from launcher.plan.container_paths import CONTAINER_RUNS
from launcher.render.kubernetes import pods, storage
from launcher.render.kubernetes.objects import CLUSTER_LABEL, COMPONENT, HOUSEKEEPING, TRAINER, Run, amounts, metadata

# Its small needs, named so that a quota admits it.
_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}
_TIMEOUT = 300.0  # seconds, an image that is pulled first and a node that is added for it included
# Kind of trouble that seldom mends itself -> seconds that a pod with it is waited for nevertheless.
_TROUBLE_TIMEOUTS: dict[str, float] = {"image": 20.0, "config": 20.0}
_PROBE_TIMEOUTS = {**_TROUBLE_TIMEOUTS, "nodes": 60.0}  # a caller that only asks does not wait for what may come
_POLL_INTERVAL = 0.5
_MODES = ("ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")  # the widest first
_SERVES_FOR = 4 * 3600.0  # seconds, of a pod whose launcher was killed and that does not end by itself


def on_its_claim(cluster: Cluster, run: Run) -> Run:
    """Return the run with the access mode of its claim, the widest of several, where that is there: it cannot be changed."""
    claim = cluster.get("PersistentVolumeClaim", run.claim) if run.storage is not None else None
    if claim is None or claim["metadata"].get("deletionTimestamp"):
        return run
    modes = claim["spec"].get("accessModes") or ()
    return dataclasses.replace(run, claim_access=next((mode for mode in _MODES if mode in modes), None))


def rename_directory(cluster: Cluster, run: Run, new_name: str) -> None:
    """Rename the run's directory on its volume; nothing happens where it is not there."""
    source, target = f"{CONTAINER_RUNS}/{run.name}", f"{CONTAINER_RUNS}/{new_name}"
    _run_command(
        cluster, run, ["sh", "-c", f"if [ -e '{source}' ]; then mv '{source}' '{target}'; fi"], "renaming its directory", _TROUBLE_TIMEOUTS
    )


def remove(cluster: Cluster, run: Run) -> None:
    """Remove the run's directory from a volume that is not its own alone; nothing happens where the claim is not there."""
    if cluster.get("PersistentVolumeClaim", run.claim) is not None:
        _run_command(cluster, run, ["rm", "-rf", f"{CONTAINER_RUNS}/{run.name}"], "deleting its data", _TROUBLE_TIMEOUTS)


class FailedPodError(LauncherError):
    """A pod did not succeed; `code` is its command's exit code, None where that did not end by itself."""

    def __init__(self, message: str, remedy: str, code: int | None) -> None:
        super().__init__(message, remedy)
        self.code = code


def probe(cluster: Cluster, run: Run, command: list[str], *, mounted: bool) -> None:
    """Run a command in the run's image, with labels as tasks have, and with its volume where that is wanted.

    Raises LauncherError with why it did not start, FailedPodError where it did not succeed.
    """
    _run_command(cluster, run, command, "starting a pod", _PROBE_TIMEOUTS, mounted=mounted, labels={CLUSTER_LABEL: "doctor"})


@contextlib.contextmanager
def serving(cluster: Cluster, run: Run, command: list[str], doing: str, *, is_probe: bool = False) -> Iterator[str]:
    """Run a command beside the run's tasks for a `with` block, with the volume read-only; give the name of the pod, which runs by then.

    A probe waits only a minute for a node.

    Raises LauncherError with why it did not start.
    """
    made = _pod(run, command, read_only=True, within=_SERVES_FOR)
    made["metadata"]["labels"] |= storage.volume_labels(run)
    made["spec"] |= node_constraints(run, cluster.listed("Pod", status_source.labels_of(run.name)))
    made["metadata"]["namespace"] = cluster.namespace
    name = str(cluster.create(made)["metadata"]["name"])
    try:
        _await_phase(cluster, name, doing, _PROBE_TIMEOUTS if is_probe else _TROUBLE_TIMEOUTS, "Running")
        yield name
    finally:
        cluster.delete("Pod", name, grace=1)


def node_constraints(run: Run, own: Iterable[Object]) -> Object:
    """Return which node a pod has to be on, as fields of its spec: the one where one of the run's `own` pods has a volume of one node. Pure.

    It tolerates there what that one does: nodes with GPUs have taints of which the spec need not say anything.

    Raises:
        UsageError: the volume is one pod's, and a pod of the run has it.
    """
    access = run.access
    if access == "ReadWriteMany":
        return {}
    for pod in own:
        claims = [(one.get("persistentVolumeClaim") or {}).get("claimName") for one in pod["spec"].get("volumes") or ()]
        node = pod["spec"].get("nodeName")
        if run.claim not in claims or not node or pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
            continue
        if access == "ReadWriteOncePod":
            raise UsageError(
                f"storage.access is ReadWriteOncePod, and the pod {pod['metadata']['name']} has the volume",
                "wait until it has ended, or stop the run: launcher down",
            )
        on = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [on]}}}
        return {"affinity": affinity, "tolerations": pod["spec"].get("tolerations") or []}
    return {}


def delete_finished(cluster: Cluster, run: str) -> None:
    """Delete the run's pods of this kind that have ended and whose launcher was killed: a claim that one has mounted cannot go."""
    for pod in cluster.listed("Pod", {**status_source.labels_of(run), COMPONENT: HOUSEKEEPING}):
        if pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
            cluster.delete("Pod", pod["metadata"]["name"], uid=pod["metadata"]["uid"])


def _run_command(
    cluster: Cluster,
    run: Run,
    command: list[str],
    doing: str,
    timeouts: dict[str, float],
    *,
    mounted: bool = True,
    labels: Mapping[str, str] | None = None,
) -> None:
    made = _pod(run, command, mounted=mounted)
    if mounted:
        made["spec"] |= node_constraints(run, cluster.listed("Pod", status_source.labels_of(run.name)))
    made["metadata"]["namespace"] = cluster.namespace
    made["metadata"]["labels"] |= labels or {}
    name = str(cluster.create(made)["metadata"]["name"])
    try:
        _await_phase(cluster, name, doing, timeouts, "Succeeded")
    finally:
        cluster.delete("Pod", name, grace=1)


def helper(run: Run) -> Object:
    """Return such a pod as the launcher makes of a run, one that does nothing."""
    return _pod(run, ["true"], mounted=run.storage is not None)


def _pod(run: Run, command: list[str], *, mounted: bool = True, read_only: bool = False, within: float = _TIMEOUT) -> Object:
    volume, mount = pods.tmp()
    own = storage.mount(read_only=read_only)
    mounts, volumes = ([own, mount], [storage.volume(run), volume]) if mounted else ([mount], [volume])
    given = amounts(run.options.helper.cpu, run.options.helper.memory)
    resources = {what: {**little, **given} for what, little in _RESOURCES.items()}
    container = pods.base_container(run, TRAINER, command) | {"resources": resources, "volumeMounts": mounts}
    head = metadata(run, f"{run.name}-{HOUSEKEEPING}", HOUSEKEEPING)
    head["generateName"] = f"{head.pop('name')}-"  # one for each use: two may be at work at once
    spec = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": math.ceil(within),  # also where the launcher that made it was killed
        **pods.hardened(run),
        **pods.placement(run),
        "containers": [container],
        "volumes": volumes,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": spec}


def _await_phase(cluster: Cluster, name: str, doing: str, timeouts: dict[str, float], wanted: str) -> None:
    began = time.monotonic()
    while True:
        pod = cluster.get("Pod", name)
        if pod is None:
            raise LauncherError(f"{doing}: the pod {name} was deleted, or evicted, before it was done", "try again; see kubectl get events")
        phase = pod.get("status", {}).get("phase")
        if phase == wanted:
            return
        waited = time.monotonic() - began
        found = diagnosis.of_pod(pod)
        is_overdue = found is not None and waited > (_TROUBLE_TIMEOUTS["config"] if found.final else timeouts.get(found.kind, _TIMEOUT))
        if phase in {"Failed", "Succeeded"} or is_overdue or waited > _TIMEOUT:
            why = found.message if found else f"it is {phase} after {_TIMEOUT:.0f} s"
            remedy = found.remedy if found else f"see kubectl describe pod {name}"
            raise FailedPodError(f"{doing}: the pod {name} did not succeed: {why}", remedy, pod_status.exit_code(pod))
        time.sleep(_POLL_INTERVAL)
