"""Short-lived pods of the launcher: they rename, delete or serve a run's directory on its volume, or probe the cluster."""

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping

from launcher.backend.kubernetes import diagnosis, pod_status, status_reader
from launcher.backend.kubernetes.client import Cluster, Object, claims_of
from launcher.backend.kubernetes.object_fields import has_ended, node_of
from launcher.errors import LauncherError, UsageError
from launcher.plan.container_paths import CONTAINER_RUNS
from launcher.render.kubernetes import pods, storage
from launcher.render.kubernetes.objects import COMPONENT_LABEL, HELPER_POD, TASK_LABEL, TRAINER_CONTAINER, Run, metadata, resource_list

# Small resources, set explicitly so that a quota admits the pod.
_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}
_TIMEOUT = 300.0  # seconds, including the time to pull an image and to add a node
# Kind of a diagnosis that rarely resolves itself -> seconds to wait for a pod with it.
_PROBLEM_TIMEOUTS: dict[str, float] = {"image": 20.0, "config": 20.0}
_PROBE_TIMEOUTS = {**_PROBLEM_TIMEOUTS, "nodes": 60.0}  # a probe does not wait for new nodes
_POLL_INTERVAL = 0.5
_SERVING_DEADLINE = 4 * 3600.0  # seconds after which a serving pod ends if its launcher was killed


def rename_directory(cluster: Cluster, run: Run, new_name: str) -> None:
    """Rename the run's directory on its volume; do nothing if it does not exist."""
    source, target = f"{CONTAINER_RUNS}/{run.name}", f"{CONTAINER_RUNS}/{new_name}"
    _run_command(
        cluster, run, ["sh", "-c", f"if [ -e '{source}' ]; then mv '{source}' '{target}'; fi"], "renaming its directory", _PROBLEM_TIMEOUTS
    )


def delete_directory(cluster: Cluster, run: Run) -> None:
    """Remove the run's directory from a shared volume; do nothing if the claim does not exist."""
    if cluster.get("PersistentVolumeClaim", run.claim) is not None:
        _run_command(cluster, run, ["rm", "-rf", f"{CONTAINER_RUNS}/{run.name}"], "deleting its data", _PROBLEM_TIMEOUTS)


class FailedPodError(LauncherError):
    """A pod did not succeed; `code` is its command's exit code, None if it has none, and `kind` that of the diagnosis, empty without one."""

    def __init__(self, message: str, remedy: str, code: int | None, kind: str = "") -> None:
        super().__init__(message, remedy)
        self.code, self.kind = code, kind


def probe(cluster: Cluster, run: Run, command: list[str], *, mounted: bool) -> None:
    """Run a command in the run's image, with the labels of tasks, and with the run's volume if `mounted`.

    Raises LauncherError if the pod does not start, FailedPodError if it does not succeed.
    """
    _run_command(cluster, run, command, "starting a pod", _PROBE_TIMEOUTS, mounted=mounted, labels={TASK_LABEL: "doctor"})


@contextlib.contextmanager
def serving(cluster: Cluster, run: Run, command: list[str], action: str, *, is_probe: bool = False) -> Iterator[str]:
    """Run a command beside the run's tasks for a `with` block, with the volume read-only; yield the name of the running pod.

    A probe waits only a minute for a node. Raises LauncherError if the pod does not start.
    """
    manifest = _pod(run, command, read_only=True, deadline=_SERVING_DEADLINE)
    manifest["metadata"]["labels"] |= storage.volume_labels(run)
    with _started(cluster, run, manifest, action, _PROBE_TIMEOUTS if is_probe else _PROBLEM_TIMEOUTS, "Running") as name:
        yield name


def node_constraints(run: Run, own_pods: Iterable[Object]) -> Object:
    """Return the spec fields that put a pod on the node where one of the run's `own_pods` has mounted the volume; none for ReadWriteMany. Pure.

    The pod gets that pod's tolerations: nodes with GPUs have taints that the spec need not mention.

    Raises:
        UsageError: the access mode is ReadWriteOncePod, and a pod of the run has mounted the volume.
    """
    access = run.access
    if access == "ReadWriteMany":
        return {}
    for pod in own_pods:
        node = node_of(pod)
        if run.claim not in claims_of(pod["spec"]).values() or not node or has_ended(pod):
            continue
        if access == "ReadWriteOncePod":
            raise UsageError(
                f"storage.access is ReadWriteOncePod, and the pod {pod['metadata']['name']} has mounted the volume",
                "wait until it has ended, or stop the run: launcher down",
            )
        node_selector = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [node_selector]}}}
        return {"affinity": affinity, "tolerations": pod["spec"].get("tolerations") or []}
    return {}


def delete_finished(cluster: Cluster, run: str) -> None:
    """Delete the run's helper pods that have ended and whose launcher was killed: they keep a claim from being deleted."""
    for pod in cluster.list_objects("Pod", {**status_reader.labels_of(run), COMPONENT_LABEL: HELPER_POD}):
        if has_ended(pod):
            cluster.delete("Pod", pod["metadata"]["name"], uid=pod["metadata"]["uid"])


def _run_command(
    cluster: Cluster,
    run: Run,
    command: list[str],
    action: str,
    timeouts: dict[str, float],
    *,
    mounted: bool = True,
    labels: Mapping[str, str] | None = None,
) -> None:
    manifest = _pod(run, command, mounted=mounted)
    manifest["metadata"]["labels"] |= labels or {}
    with _started(cluster, run, manifest, action, timeouts, "Succeeded", mounted=mounted):
        pass


@contextlib.contextmanager
def _started(
    cluster: Cluster, run: Run, manifest: Object, action: str, timeouts: dict[str, float], expected: str, *, mounted: bool = True
) -> Iterator[str]:
    """Create a pod for a `with` block, on the node of the run's volume if that is `mounted`; yield its name once it has the phase `expected`."""
    if mounted:
        manifest["spec"] |= node_constraints(run, cluster.list_objects("Pod", status_reader.labels_of(run.name)))
    manifest["metadata"]["namespace"] = cluster.namespace
    name = str(cluster.create(manifest)["metadata"]["name"])
    try:
        _await_phase(cluster, name, action, timeouts, expected)
        yield name
    finally:
        cluster.delete("Pod", name, grace=1)


def helper(run: Run) -> Object:
    """Return a helper pod of a run that does nothing, for a dry run."""
    return _pod(run, ["true"], mounted=run.storage is not None)


def _pod(run: Run, command: list[str], *, mounted: bool = True, read_only: bool = False, deadline: float = _TIMEOUT) -> Object:
    volume, mount = pods.tmp()
    run_mount = storage.mount(read_only=read_only)
    mounts, volumes = ([run_mount, mount], [storage.volume(run), volume]) if mounted else ([mount], [volume])
    given = resource_list(run.options.helper.cpu, run.options.helper.memory)
    resources = {kind: {**default, **given} for kind, default in _RESOURCES.items()}
    container = pods.base_container(run, TRAINER_CONTAINER, command) | {"resources": resources, "volumeMounts": mounts}
    pod_metadata = metadata(run, f"{run.name}-{HELPER_POD}", HELPER_POD)
    pod_metadata["generateName"] = f"{pod_metadata.pop('name')}-"  # unique: two may run at once
    spec = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": math.ceil(deadline),  # also if the launcher that created it was killed
        **pods.hardened_pod_fields(run),
        **pods.scheduling(run),
        "containers": [container],
        "volumes": volumes,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": pod_metadata, "spec": spec}


def _await_phase(cluster: Cluster, name: str, action: str, timeouts: dict[str, float], expected: str) -> None:
    began = time.monotonic()
    while True:
        pod = cluster.get("Pod", name)
        if pod is None:
            raise LauncherError(
                f"{action}: the pod {name} was deleted, or evicted, before it was done", "try again; see kubectl get events"
            )
        phase = pod.get("status", {}).get("phase")
        if phase == expected:
            return
        waited = time.monotonic() - began
        found = diagnosis.diagnose_pod(pod)
        is_overdue = found is not None and waited > (_PROBLEM_TIMEOUTS["config"] if found.final else timeouts.get(found.kind, _TIMEOUT))
        if has_ended(pod) or is_overdue or waited > _TIMEOUT:
            cause = found.message if found else f"it is {phase} after {waited:.0f} s"
            remedy = found.remedy if found else f"see kubectl describe pod {name} -n {cluster.namespace}"
            raise FailedPodError(
                f"{action}: the pod {name} did not succeed: {cause}", remedy, pod_status.exit_code(pod), found.kind if found else ""
            )
        time.sleep(_POLL_INTERVAL)
