"""Status of a run that has no Jobs: they are not created yet, are being stopped, or were deleted."""

from collections.abc import Iterable
from pathlib import Path

from launcher.backend.kubernetes import pod_status, run_record, status_reader
from launcher.backend.kubernetes.client import Cluster, Object
from launcher.backend.kubernetes.object_fields import label
from launcher.backend.kubernetes.pod_logs import stored_tasks
from launcher.backend.kubernetes.run_context import BACKEND
from launcher.plan import role_rules
from launcher.render.kubernetes.objects import INSTANCE_LABEL
from launcher.runs.status import RunStatus, State, TaskStatus


def status(cluster: Cluster, snapshot: pod_status.RunSnapshot, directory: Path, ended: RunStatus | None) -> RunStatus | None:
    """Return the status of a run without Jobs; None if the run does not exist.

    `snapshot` has its last known objects, perhaps a JobSet that has no Jobs yet; `directory` has this machine's copies of its pods' logs; `ended` is
    the final status that this process saw, used if the cluster has no record.
    """
    run = snapshot.name
    record = cluster.get("ConfigMap", run_record.name_of(run))
    location = status_reader.claim_location(cluster, run_record.claim_name(run, record), run)
    spec = run_record.spec(record) or {}
    names = task_names(record) or stored_tasks(directory)

    def run_status(state: State, reason: str, task_statuses: Iterable[TaskStatus]) -> RunStatus:
        return RunStatus(run, BACKEND, state, reason, run_dir=location, strategy=str(spec.get("strategy", "")), tasks=tuple(task_statuses))

    if pods := status_reader.pods_of(cluster, run):
        return run_status(State.RUNNING, "it is being stopped", _stopping_tasks(names, pods))
    if snapshot.jobset and not pod_status.creates_no_more_jobs(snapshot.jobset):
        reason = pod_status.queue_reason(snapshot) or f"its JobSet {snapshot.jobset['metadata']['name']} has no Jobs yet"
        return run_status(State.PENDING, reason, (TaskStatus(task, State.PENDING) for task in names))
    if message := run_record.starting_launcher(record, cluster.now()):
        return run_status(State.PENDING, f"it is being {message}", (TaskStatus(task, State.PENDING) for task in names))
    if final := run_record.final(record) or run_record.stopping(record):
        return final
    if record is None and ended is not None:
        return ended
    if record is None and not _has_claim(cluster, run):
        return None
    ttl = (spec.get("kubernetes") or {}).get("ttl")
    state = State.UNKNOWN if ttl else State.STOPPED
    cause = f"finished more than kubernetes.ttl ({ttl}) ago while no launcher watched, or were deleted" if ttl else "were deleted"
    reason = f"its Jobs {cause}; `up` resumes from its last checkpoint"
    return run_status(state, reason, (TaskStatus(task, state) for task in names))


def task_names(record: Object | None) -> list[str]:
    """Return the tasks of the last start of the run; none if they are not known."""
    roles = (run_record.spec(record) or {}).get("roles") or {}
    sizes = {role: int((roles.get(role) or {}).get("replicas", 0)) for role in role_rules.ROLE_ORDER}
    return [role_rules.task_name(role, index) for role, size in sizes.items() for index in range(size)]


def _stopping_tasks(names: Iterable[str], pods: Iterable[Object]) -> list[TaskStatus]:
    remaining = sorted({pod_status.task_of(pod) for pod in pods})
    return [
        TaskStatus(task, State.RUNNING, "is being stopped") if task in remaining else TaskStatus(task, State.STOPPED)
        for task in dict.fromkeys([*names, *remaining])
    ]


def _has_claim(cluster: Cluster, run: str) -> bool:
    claim = cluster.get("PersistentVolumeClaim", run)
    return claim is not None and label(claim, INSTANCE_LABEL) == run
