"""TensorBoard of runs that ended long ago: the next start or stop of a run deletes it, since nothing of the launcher stays in the cluster."""

from launcher.backend.kubernetes import pod_status, run_record, status_source
from launcher.backend.kubernetes.client import Cluster
from launcher.render.kubernetes.objects import TENSORBOARD
from launcher.runs.status import ENDED
from launcher.spec.quantities import parse_duration

_KINDS = ("Deployment", "Service", "NetworkPolicy")


def sweep(cluster: Cluster) -> None:
    """Delete each TensorBoard of the namespace whose run ended longer ago than its own `kubernetes.tensorboard_ttl`. Raises LauncherError.

    One of a run without a record, or of a version that had no such field, stays.
    """
    boards = cluster.listed("Deployment", {**status_source.OURS, pod_status.COMPONENT: TENSORBOARD})
    for run in sorted({board["metadata"]["labels"].get(pod_status.INSTANCE, "") for board in boards} - {""}):
        noted = cluster.get("ConfigMap", run_record.name_of(run))
        ttl = ((run_record.spec(noted) or {}).get("kubernetes") or {}).get("tensorboard_ttl")
        if ttl is None or run_record.being_started(noted, cluster.now()):
            continue
        status = run_record.final(noted) or pod_status.status(status_source.gather(cluster, run), cluster.now())
        if status.state in ENDED and status.ended is not None and cluster.now() - status.ended > parse_duration(ttl):
            _delete(cluster, run)


def _delete(cluster: Cluster, run: str) -> None:
    for kind in _KINDS:
        for one in cluster.listed(kind, {**status_source.labels_of(run), pod_status.COMPONENT: TENSORBOARD}):
            cluster.delete(kind, one["metadata"]["name"], uid=one["metadata"]["uid"])
