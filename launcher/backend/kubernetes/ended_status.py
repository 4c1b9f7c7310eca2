"""Status of a run that has no Jobs: they are not made yet, are being stopped, or were deleted."""

from collections.abc import Iterable
from pathlib import Path

from launcher.backend.kubernetes import pod_status, run_record, status_source
from launcher.backend.kubernetes.client import Cluster, Object
from launcher.backend.kubernetes.pod_logs import stored_tasks
from launcher.plan import role_rules
from launcher.runs.status import RunStatus, State, TaskStatus

BACKEND = "kubernetes"


def status(cluster: Cluster, snapshot: pod_status.ClusterSnapshot, directory: Path, ended: RunStatus | None) -> RunStatus | None:
    """Return how a run without Jobs is, None where there is nothing of it.

    `snapshot` is what was seen of it last, perhaps a JobSet that has no Jobs yet, `directory` is where this machine keeps what its pods wrote, `ended` the final status that this process saw, used where the cluster has no record.
    """
    run = snapshot.name
    record = cluster.get("ConfigMap", run_record.name_of(run))
    location = status_source.on_claim(run_record.claim_name(run, record), cluster, run)
    spec = run_record.spec(record) or {}
    known = tasks(record) or stored_tasks(directory)

    def made(state: State, reason: str, of: Iterable[TaskStatus]) -> RunStatus:
        return RunStatus(run, BACKEND, state, reason, run_dir=location, strategy=str(spec.get("strategy", "")), tasks=tuple(of))

    if pods := status_source.pods_of(cluster, run):
        return made(State.RUNNING, "it is being stopped", _leaving(known, pods))
    if snapshot.jobset and not pod_status.is_over(snapshot.jobset):
        reason = pod_status.waits(snapshot) or f"its JobSet {snapshot.jobset['metadata']['name']} has no Jobs yet"
        return made(State.PENDING, reason, (TaskStatus(task, State.PENDING) for task in known))
    if message := run_record.being_started(record, cluster.now()):
        return made(State.PENDING, f"it is being {message}", (TaskStatus(task, State.PENDING) for task in known))
    if final := run_record.final(record) or run_record.stopping(record):
        return final
    if record is None and ended is not None:
        return ended
    if record is None and not _has_claim(cluster, run):
        return None
    ttl = (spec.get("kubernetes") or {}).get("ttl")
    state = State.UNKNOWN if ttl else State.STOPPED
    how = f"finished more than kubernetes.ttl ({ttl}) ago while nobody watched, or were deleted" if ttl else "were deleted"
    reason = f"its Jobs {how}; `up` goes on from its last checkpoint"
    return made(state, reason, (TaskStatus(task, state) for task in known))


def tasks(record: Object | None) -> list[str]:
    """Return the tasks of the run that was last started, none where they are not known."""
    roles = (run_record.spec(record) or {}).get("roles") or {}
    sizes = {role: int((roles.get(role) or {}).get("replicas", 0)) for role in role_rules.ROLE_ORDER}
    return [role_rules.task_name(role, index) for role, size in sizes.items() for index in range(size)]


def _leaving(known: Iterable[str], pods: Iterable[Object]) -> list[TaskStatus]:
    there = sorted({pod_status.task_of(pod) for pod in pods})
    return [
        TaskStatus(task, State.RUNNING, "is being stopped") if task in there else TaskStatus(task, State.STOPPED)
        for task in dict.fromkeys([*known, *there])
    ]


def _has_claim(cluster: Cluster, run: str) -> bool:
    claim = cluster.get("PersistentVolumeClaim", run)
    return claim is not None and claim["metadata"].get("labels", {}).get(pod_status.INSTANCE) == run
