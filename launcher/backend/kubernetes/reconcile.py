"""Work that a watching launcher, or the attendant, does for a run on Kubernetes.

It marks pods of lost nodes as failed, decides when to end a run that never starts or whose tasks are evicted too often, suspends the Jobs of a
failed run, ends Jobs that would outlive a run's success, and reports what blocks a run.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from launcher.backend.kubernetes import diagnosis, pod_status
from launcher.backend.kubernetes.client import Cluster, http_status
from launcher.backend.kubernetes.errors import ForbiddenError
from launcher.backend.kubernetes.object_fields import Object, is_active, is_being_deleted, label, node_of, phase, true_condition
from launcher.backend.kubernetes.pod_status import RunSnapshot, task_of
from launcher.errors import LauncherError
from launcher.render.kubernetes.objects import SECONDS_AFTER_RUN, TASK_LABEL, VOLUME_LABEL
from launcher.runs.status import RunStatus, State
from launcher.timestamps import parse_rfc3339
from trainer.exit_codes import ExitCode

_FIRST_PODS_WITHIN = 120.0  # seconds after a Job's start in which its first pods are created, even a thousand
# Written by a watching launcher and by the attendant alike.
NODE_LOST_STATUS = {"status": {"phase": "Failed", "reason": "NodeLost", "message": "its node was lost; marked as failed by the launcher"}}


def lost_pods(pods: Sequence[Object], now: float, lost_after: float) -> list[Object]:
    """Return those of a run's pods whose nodes are lost. `now` is the cluster's time. Pure.

    A pod is lost if it was deleted because its node does not answer, and it still exists `lost_after` seconds later. If one pod of such a node is
    lost, so are all its deleted pods. If any pod of a node is ready, the node answers, and none of its pods is lost: it may still be saving, and a
    replacement would write to the same volume. Pods that mount the run's volume come first: while one is left, the scheduler would put a
    replacement on the lost node. Within both groups pods that are no tasks, such as TensorBoard's, come first.
    """
    # The cluster sets Ready to false on all pods of a node that does not answer.
    answering = {node_of(pod) for pod in pods if true_condition(pod, "Ready")}
    silent = [pod for pod in pods if node_of(pod) not in answering]
    deleted = [(pod, now - since >= lost_after) for pod in silent if (since := deleted_since(pod)) is not None]
    unresponsive_nodes = {node_of(pod) for pod, due in deleted if due and diagnosis.is_unresponsive(pod)}
    found = [pod for pod, due in deleted if due or (diagnosis.is_unresponsive(pod) and node_of(pod) in unresponsive_nodes)]
    return sorted(found, key=_volume_first)


def _volume_first(pod: Object) -> tuple[bool, bool]:
    return not label(pod, VOLUME_LABEL), bool(label(pod, TASK_LABEL))


def deleted_since(pod: Object) -> float | None:
    """Return the time from which `lost_after` counts for a pod; None if it is not known that its node does not answer.

    That is the time of its deletion; for a pod that was never ready, the end of its grace period.
    """
    metadata = pod["metadata"]
    if not is_being_deleted(pod) or not is_active(pod):
        return None
    # A node that answers kills the pod at the end of its grace period.
    due = parse_rfc3339(metadata["deletionTimestamp"]) or 0.0
    if diagnosis.is_unresponsive(pod):
        return due - float(metadata.get("deletionGracePeriodSeconds") or 0)
    # Of a pod that was never ready, the cluster does not report that its node does not answer.
    return due if diagnosis.is_evicted_by_taint(pod) else None


def unfinished_jobs(snapshot: RunSnapshot, now: float) -> list[tuple[Object, int]]:
    """Return the Jobs to end after the run's success, since their programs have not ended by themselves in time. Pure.

    Each comes with the number of tasks to keep: 1 if its first task is the leader, else 0.
    """
    waiting = [(job, float(after)) for job in snapshot.jobs if (after := pod_status.annotation(job, SECONDS_AFTER_RUN))]
    ended = pod_status.succeeded_at(snapshot)
    if pod_status.controller_of(snapshot.jobs) or ended is None:
        return []
    found = (
        (job, int(pod_status.has_leader(snapshot, job)))
        for job, after in waiting
        if now - ended >= after and not pod_status.job_has_ended(job)
    )
    return [(job, remaining) for job, remaining in found if job["spec"].get("completions") != remaining]  # else already scaled down


def start_failure(status: RunStatus, snapshot: RunSnapshot, now: float, start_timeout: float) -> str:
    """Return the reason to end a run that has not started within `start_timeout` seconds; empty while it may continue. Pure.

    Time counts from when the queue admitted a Job. A pod that was created later than the first ones is taken for the replacement of one that ran.
    """
    started = [time for job in snapshot.jobs if (time := parse_rfc3339(job.get("status", {}).get("startTime"))) is not None]
    if status.state is not State.PENDING or status.step is not None or not started or now - min(started) < start_timeout:
        return ""
    waiting = [pod for pod in snapshot.pods if phase(pod) == "Pending"]
    if not waiting and len(snapshot.pods) >= len(status.tasks):
        return ""  # all pods have started: the tasks themselves wait for their peers for limits.start_timeout
    if waiting and not any(_is_first(pod, min(started)) for pod in waiting):
        return ""
    return f"not started within limits.start_timeout ({start_timeout:.0f} s)" + (f": {status.reason}" if status.reason else "")


def eviction_failure(snapshot: RunSnapshot) -> str:
    """Return the reason to end a run if a task exceeded its limits and was evicted more often than it may fail; else an empty text. Pure.

    Such a pod exits with 143 only without the trainer's parent, or with a grace period that is too short; and the Job counts 143 only if the
    spec limits storage. So where it does not, this function counts.
    """
    for job in [] if pod_status.controller_of(snapshot.jobs) else filter(_ignores_stops, snapshot.jobs):
        limit = job["spec"].get("backoffLimitPerIndex", job["spec"].get("backoffLimit"))
        pods = (pod for pod in snapshot.pods if pod_status.role_of(pod) == pod_status.role_of(job))
        evicted = [pod for pod in pods if diagnosis.has_exceeded_limits(pod) and pod_status.exit_code(pod) == ExitCode.STOPPED]
        for task, times in Counter(map(task_of, evicted)).items():
            last = next(pod for pod in reversed(evicted) if task_of(pod) == task)
            if limit is not None and times > int(limit) and (found := diagnosis.diagnose_pod(last)):
                return f"{task}, attempt {times}: {found.message}; {found.remedy}"
    return ""


def _ignores_stops(job: Object) -> bool:
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or ()
    return any(rule["action"] == "Ignore" and ExitCode.STOPPED in (rule.get("onExitCodes") or {}).get("values", ()) for rule in rules)


def _is_first(pod: Object, started: float) -> bool:
    created = parse_rfc3339(pod["metadata"].get("creationTimestamp"))
    return created is None or created - started < _FIRST_PODS_WITHIN


class Reconciler:
    """Reconciles one run; reports each action once."""

    def __init__(self, cluster: Cluster, run: str, lost_after: float, keep_logs: Callable[[list[Object]], object] | None = None) -> None:
        """Reconcile `run`; `keep_logs`, if there is one, is called with pods that are about to be deleted, and stores their logs."""
        self._cluster, self._run, self._lost_after, self._keep_logs = cluster, run, lost_after, keep_logs
        self._done: set[str] = set()
        self._reported: set[str] = set()
        self._pending_since: float | None = None  # of time.monotonic, since it last was in another state
        self._ran = False

    def give_up_reason(self, snapshot: RunSnapshot, status: RunStatus, start_timeout: float) -> str:
        """Return the reason to end a run that has not ended: it has not started in time, or a task was evicted too often; else an empty text."""
        return self.observed_start_failure(snapshot, status, start_timeout) or eviction_failure(snapshot)

    def observed_start_failure(self, snapshot: RunSnapshot, status: RunStatus, start_timeout: float) -> str:
        """Return the start failure, once this process has also seen the run wait for `start_timeout` seconds; else an empty text."""
        now = time.monotonic()
        was_restarted = snapshot.jobset and snapshot.jobset.get("status", {}).get("restarts")
        if pod_status.controller_of(snapshot.jobs) and (was_restarted or not pod_status.launcher_created_jobset(snapshot)):
            return ""  # it ran before, or only its controller may end it
        self._ran = self._ran or status.state is State.RUNNING or bool(status.missing)  # it was complete, and an object was deleted
        if self._ran or status.state is not State.PENDING:
            self._pending_since = None
            return ""
        self._pending_since = self._pending_since or now
        return start_failure(status, snapshot, self._cluster.now(), start_timeout) if now - self._pending_since >= start_timeout else ""

    def reconcile(self, snapshot: RunSnapshot, status: RunStatus) -> Iterator[str]:
        """Do the work that is due; yield what was done, or what blocks the run. Raises LauncherError."""
        yield from self._problems(status)
        for pod in lost_pods(snapshot.pods, self._cluster.now(), self._lost_after):
            if pod["metadata"]["uid"] not in self._done and (message := self._fail_lost_pod(pod)):
                self._done.add(pod["metadata"]["uid"])  # only after success, so that it is retried if the cluster does not answer
                yield message
        if status.state is State.FAILED:
            yield from self._suspend_jobs(snapshot)
        for job, remaining in unfinished_jobs(snapshot, self._cluster.now()):
            name = job["metadata"]["name"]
            self._keep_logs_of(job, snapshot)
            self._cluster.patch("Job", name, {"spec": {"parallelism": remaining, "completions": remaining}})
            yield f"{name} is ended, because the run has succeeded"

    def _keep_logs_of(self, job: Object, snapshot: RunSnapshot) -> None:
        if self._keep_logs is not None:
            self._keep_logs([pod for pod in snapshot.pods if pod_status.role_of(pod) == pod_status.role_of(job)])

    def _problems(self, status: RunStatus) -> Iterator[str]:
        if status.data_lost is not None and status.data_lost.message not in self._reported:
            self._reported.add(status.data_lost.message)
            yield status.data_lost.message
        # By its code: the text contains the duration, and changes every second.
        blocker = ", ".join(status.missing) or (status.reason_code if status.state is State.PENDING else "")
        if blocker and blocker not in self._reported:
            self._reported.add(blocker)
            yield status.reason

    def _fail_lost_pod(self, pod: Object) -> str:
        """Mark a pod as failed, and return the message about it; an empty one if the pod has changed since it was seen, or is gone.

        Its node may answer again, and the kubelet write that the task has succeeded: the API server compares the versions.
        """
        name, node = pod["metadata"]["name"], node_of(pod) or "?"
        patch = {"metadata": {"resourceVersion": pod["metadata"].get("resourceVersion")}, **NODE_LOST_STATUS}
        try:
            self._cluster.patch("Pod", name, patch, subresource="status")
        except ForbiddenError:
            # The API server checks the permission before the version.
            current = self._cluster.get("Pod", name)
            if current is None or current["metadata"].get("resourceVersion") != pod["metadata"].get("resourceVersion"):
                return ""
            # Reported once, with the command for a user with the permission.
            return f"{task_of(pod)} is stuck on the lost node {node}, and you lack permission to mark its pod as failed. A user who may patch pods/status can run: {diagnosis.mark_failed_command(pod)}"
        except LauncherError as error:
            if http_status(error) not in {404, 409}:
                raise
            return ""
        return f"{task_of(pod)}: the node {node} is lost; its pod {name} was marked as failed, and is replaced"

    def _suspend_jobs(self, snapshot: RunSnapshot) -> Iterator[str]:
        """Suspend the active Jobs of a failed run: their pods end, and the Jobs keep their status.

        Jobs of a controller, such as a JobSet, are left alone: it ends them, or restarts all of them.
        """
        if pod_status.controller_of(snapshot.jobs):
            return
        for job in snapshot.jobs:
            name = job["metadata"]["name"]
            if not pod_status.creates_no_more_pods(job) and name not in self._done:
                # Its pods are deleted, even one that has failed and only waits for its sidecars to end.
                self._keep_logs_of(job, snapshot)
                self._cluster.patch("Job", name, {"spec": {"suspend": True}})
                self._done.add(name)
                yield f"{name} is ended with the run"
