"""The status of a run from its Jobs, pods and events. Pure.

It promises: a run has succeeded only if its JobSet is complete, or each of its Jobs is (a Job that was ended because the run had succeeded
counts as complete); a task runs only if a container of its pod runs; the reason of a failed run names the task that failed, the attempt,
the exit code and the last error line, as far as its pods show these.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from launcher.backend.kubernetes import diagnosis, volume_affinity
from launcher.backend.kubernetes.diagnosis import Diagnosis
from launcher.backend.kubernetes.object_fields import Object, is_being_deleted, label, true_condition
from launcher.backend.kubernetes.run_context import BACKEND, RunContext
from launcher.backend.kubernetes.task_events import TaskEvents
from launcher.plan import role_rules
from launcher.render.kubernetes.objects import (
    COMPONENT_LABEL,
    DIGEST_ANNOTATION,
    FOLLOWS_RUN,
    INSTANCE_LABEL,
    QUEUE_LABEL,
    SECONDS_AFTER_RUN,
    STRATEGY_ANNOTATION,
    TASK_COUNT,
)
from launcher.runs.reasons import with_remedy
from launcher.runs.status import ENDED, EndedAttempt, RunStatus, State, TaskStatus
from launcher.timestamps import parse_rfc3339
from trainer.exit_codes import ExitCode

_INDEX = "batch.kubernetes.io/job-completion-index"
_FAILURES = "batch.kubernetes.io/job-index-failure-count"  # on a pod: the number of earlier failures of its index that count
# Exit codes of tasks that end because another one did, or because the cluster asked them to.
_CONSEQUENTIAL_CODES = {int(ExitCode.PEER_LOST), int(ExitCode.STOPPED)}
# Diagnoses whose remedy is to read the log: the launcher shows its end anyway.
_REMEDY_IS_LOG = {"exit", "crash"}
# A Job's message about the pod for which its failure policy ended it: the only trace of the pod once kubernetes.ttl has passed.
_ENDED_BY_POLICY = r"for pod \S+/{job}-(\d+)-\S+ failed with exit code (\d+)"
# The events of an eviction and of a deletion do not differ.
DELETED = "its pod was deleted, or its node drained"
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


@dataclass(frozen=True)
class RunSnapshot:
    """Objects of one run from the API: its Jobs, the pods of its tasks, its claims, and the namespace's events.

    `past_attempts`: task -> the attempts whose pods were deleted. `jobset` is the JobSet that has created the Jobs and knows whether they have ended
    for good; None if there is none, or it may not be read. `workloads` are the namespace's Workloads of Kueue, if the run waits for a queue. `nodes`
    are the cluster's nodes, read only if a pod cannot be scheduled and the user may list nodes.
    """

    name: str
    jobs: Sequence[Object]
    pods: Sequence[Object] = ()
    claims: Sequence[Object] = ()
    events: Sequence[Object] = ()
    past_attempts: Mapping[str, Sequence[EndedAttempt]] = field(default_factory=dict)
    jobset: Object | None = None
    workloads: Sequence[Object] = ()
    nodes: Sequence[Object] = ()

    def events_of(self, obj: Object) -> list[Object]:
        """Return the events about one object."""
        uid = obj.get("metadata", {}).get("uid")
        return [event for event in self.events if event.get("involvedObject", {}).get("uid") == uid]


@dataclass(frozen=True)
class Reason:
    """The reason of a run's state: its text; the task it concerns, if any; its code, if the run has not started."""

    text: str = ""
    task: str = ""
    code: str = ""


def status(snapshot: RunSnapshot, now: float) -> RunStatus:
    """Return the status of a run at `now`, seconds since the epoch, from its objects only."""
    return run_status(snapshot, tasks(snapshot, now), TaskEvents(""), RunContext())


def tasks(snapshot: RunSnapshot, now: float) -> tuple[TaskStatus, ...]:
    """Return the statuses of a run's tasks, from its objects only."""
    return tuple(task for job in _by_role(snapshot.jobs) for task in _tasks(snapshot, job, now))


def run_status(snapshot: RunSnapshot, pod_statuses: tuple[TaskStatus, ...], task_events: TaskEvents, context: RunContext) -> RunStatus:
    """Return the status of a run from its objects, the events of its tasks and the facts of `context`."""
    tasks = task_events.statuses(pod_statuses)
    state, reason = _run_state(snapshot, pod_statuses, tasks, trains=task_events.progress.ready)
    started = [time for job in snapshot.jobs if (time := parse_rfc3339(job.get("status", {}).get("startTime"))) is not None]
    ended = [_ended_at(job) for job in snapshot.jobs]
    controllers = [*_by_role(snapshot.jobs)[:1], *([snapshot.jobset] if snapshot.jobset else [])]
    annotations = {key: value for controller in controllers for key, value in (controller["metadata"].get("annotations") or {}).items()}
    return RunStatus(
        name=snapshot.name,
        backend=BACKEND,
        reason_code=reason.code if state is State.PENDING else "",
        run_dir=context.location,
        spec_digest=annotations.get(DIGEST_ANNOTATION, ""),
        strategy=annotations.get(STRATEGY_ANNOTATION, ""),
        started=min(started, default=None),
        ended=max((time for time in ended if time is not None), default=None) if state in {State.SUCCEEDED, State.FAILED} else None,
        **task_events.progress.fields(ended=state in ENDED) | context.fields(state, reason.text, reason.task, tasks),
    )


def _by_role(jobs: Sequence[Object]) -> list[Object]:
    return sorted(jobs, key=lambda job: role_rules.role_position(role_of(job)))


def _run_state(
    snapshot: RunSnapshot, pod_statuses: tuple[TaskStatus, ...], tasks: tuple[TaskStatus, ...], *, trains: bool
) -> tuple[State, Reason]:
    jobs = _by_role(snapshot.jobs)
    if snapshot.jobset and true_condition(snapshot.jobset, "Completed"):
        return State.SUCCEEDED, Reason()
    success_at = succeeded_at(snapshot)
    failed_jobs = [
        job
        for job in jobs
        if true_condition(job, "Failed") and not (success_at is not None and _ends_itself_with_run(job) and _failed_at(job) > success_at)
    ]
    failed = bool(failed_jobs)
    if snapshot.jobset and failed and not true_condition(snapshot.jobset, "Failed"):
        reason = _failure_reason(snapshot, tasks)
        return State.RESTARTING, dataclasses.replace(reason, text=f"{controller_of(jobs)} starts it again, or ends it: {reason.text}")
    if failed or (snapshot.jobset and true_condition(snapshot.jobset, "Failed")):
        return State.FAILED, _failure_reason(snapshot, tasks)
    if jobs and all(true_condition(job, "Complete") or (true_condition(job, "Failed") and job not in failed_jobs) for job in jobs):
        return State.SUCCEEDED, Reason()
    return _active_state(_pending_reason(snapshot, pod_statuses), pod_statuses, tasks, trains=trains)


def _pending_reason(snapshot: RunSnapshot, pod_statuses: Sequence[TaskStatus]) -> Reason:
    """Return why a task is pending: a problem with the run's claims if there is one, else the pod's own reason; empty if no task is pending."""
    waiting = [task for task in pod_statuses if task.state is State.PENDING]
    claims = (diagnosis.diagnose_claim(claim, snapshot.events_of(claim)) for claim in snapshot.claims if waiting)
    pending = [Reason(with_remedy(found.message, found.remedy), code=found.kind) for found in claims if found]
    pods = (
        Reason(with_remedy(f"{task.name}: {task.reason}", task.remedy), task.name, f"{task.name}: {task.reason_code}")
        for task in waiting
        if task.reason
    )
    return next(iter(pending), None) or next(pods, Reason())


def _active_state(
    pending: Reason, pod_statuses: Sequence[TaskStatus], tasks: Sequence[TaskStatus], *, trains: bool
) -> tuple[State, Reason]:
    """Return the state: a run is running once it trains, or once all tasks run: by their pods, and by their events where they write any."""
    states = [task.state for task in tasks]
    if State.STOPPED in states and all(state in ENDED for state in states):
        return State.STOPPED, pending
    # A task that, for example, cannot be scheduled or cannot pull its image keeps the run from running, whatever the others do. It has a reason;
    # a task that is merely recreated has none.
    is_blocked = any(task.state is State.PENDING and task.reason for task in pod_statuses)
    if (trains and not is_blocked) or all(state in {State.RUNNING, State.SUCCEEDED} for state in states):
        return State.RUNNING, pending
    waiting = (Reason(f"{task.name}: {task.reason}", task.name) for task in tasks if task.state is State.PENDING and task.reason)
    return State.PENDING, pending if pending.text else next(waiting, pending)


def has_leader(snapshot: RunSnapshot, job: Object) -> bool:
    """Return whether a Job is that of the leader: the chief, or worker-0."""
    return role_of(job) == role_rules.leading_role_name(map(role_of, snapshot.jobs))


def succeeded_at(snapshot: RunSnapshot) -> float | None:
    """Return when the last required Job of a user's program was complete; None while one is not."""
    required = [job for job in snapshot.jobs if has_leader(snapshot, job) or not (_ends_itself_with_run(job) or _is_ended_by_launcher(job))]
    ended = [_completed_at(snapshot, job) for job in required]
    return max((time for time in ended if time is not None), default=None) if None not in ended else None


def _completed_at(snapshot: RunSnapshot, job: Object) -> float | None:
    """Return a Job's completion time; for a leader's Job that is ended with the run, the end of its first task."""
    if true_condition(job, "Complete"):
        return parse_rfc3339(job["status"].get("completionTime"))
    first = re.match(r"0\b", str(job.get("status", {}).get("completedIndexes") or ""))
    if not _is_ended_by_launcher(job) or not has_leader(snapshot, job) or not first:
        return None
    pods = [pod for pod in snapshot.pods if role_of(pod) == role_of(job) and _index(pod) == 0]
    return max((finished_at(pod) or 0.0 for pod in pods), default=0.0)


def _ends_itself_with_run(job: Object) -> bool:
    return bool(annotation(job, FOLLOWS_RUN))


def _is_ended_by_launcher(job: Object) -> bool:
    return bool(annotation(job, SECONDS_AFTER_RUN))


def annotation(job: Object, key: str) -> str:
    """Return an annotation of an object, empty if it has none."""
    return str((job["metadata"].get("annotations") or {}).get(key, ""))


def _failure_reason(snapshot: RunSnapshot, tasks: Iterable[TaskStatus]) -> Reason:
    """Return why a run has failed: the first task to fail, its attempt, and its failure."""
    job = min((job for job in snapshot.jobs if true_condition(job, "Failed")), key=_failed_at, default=snapshot.jobset or {"metadata": {}})
    found = true_condition(job, "Failed") or {}
    if found.get("reason") == "DeadlineExceeded":
        return Reason("limits.deadline has passed; raise it; `up` resumes from the last checkpoint")
    # A failed task is RESTARTING until its Job notices, which waits for its sidecars to end.
    ended = [task for task in tasks if task.state in {State.FAILED, State.RESTARTING} and task.exit_code and task.reason]
    failed = [task for task in tasks if task.state is State.FAILED and task.reason]
    failed += [task for task in ended if task not in failed and {other.exit_code for other in failed} <= _CONSEQUENTIAL_CODES]
    if failed:
        task = min(failed, key=_failure_order)
        attempt = task.restart_count + (task.state is State.FAILED)
        return Reason(with_remedy(f"{task.name}, attempt {attempt}: {task.reason}", task.remedy), task.name)
    message = str(found.get("message") or found.get("reason", ""))
    if match := re.search(_ENDED_BY_POLICY.format(job=re.escape(job["metadata"].get("name", ""))), message):
        return Reason(f"{role_rules.task_name(role_of(job), int(match[1]))}: exit code {match[2]}")  # type: ignore[arg-type]  # a label is one of the roles
    return Reason(f"{role_of(job) or controller_of(snapshot.jobs)}: {message}")


def _failed_at(job: Object) -> float:
    """Return when it was decided that a Job fails: its pods may take long to end after that."""
    failure = true_condition(job, "FailureTarget") or true_condition(job, "Failed") or {}
    return parse_rfc3339(failure.get("lastTransitionTime")) or math.inf


def _failure_order(task: TaskStatus) -> tuple[bool, float]:
    """Order failed tasks by their end; those that ended only because of another come last."""
    return task.exit_code in _CONSEQUENTIAL_CODES, math.inf if task.ended is None else task.ended


def _tasks(snapshot: RunSnapshot, job: Object, now: float) -> Iterable[TaskStatus]:
    role = label(job, COMPONENT_LABEL)
    pods: dict[int, list[Object]] = {}
    for pod in snapshot.pods:
        if label(pod, COMPONENT_LABEL) == role:
            pods.setdefault(_index(pod), []).append(pod)
    for index in range(int(annotation(job, TASK_COUNT) or job.get("spec", {}).get("completions") or 1)):
        attempts = sorted(pods.get(index, []), key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
        yield _task(snapshot, job, role_rules.task_name(role, index), attempts, now)  # type: ignore[arg-type]  # a label is one of the roles


def _task(snapshot: RunSnapshot, job: Object, name: str, attempts: list[Object], now: float) -> TaskStatus:
    ended = sorted([*snapshot.past_attempts.get(name, ()), *map(ended_attempt, attempts[:-1])], key=lambda attempt: attempt.time)
    restarts = tuple(dataclasses.replace(attempt, attempt=number) for number, attempt in enumerate(ended, 1))
    if not attempts:
        return dataclasses.replace(_without_pod(snapshot, job, name), restarts=restarts)
    pod = attempts[-1]
    phase = pod.get("status", {}).get("phase", "Pending")
    pod_events = snapshot.events_of(pod)
    leader_completed = any(has_leader(snapshot, job) and true_condition(job, "Complete") for job in snapshot.jobs)
    found = volume_affinity.diagnose(
        pod, snapshot.pods, snapshot.claims, pod_events, leader_completed=leader_completed
    ) or diagnosis.diagnose_pod(pod, pod_events, snapshot.nodes)
    status = TaskStatus(
        name,
        _STATES.get(phase, _pending)(job, pod),
        _reason(pod, phase, found, now),
        found.kind if found else "",
        found.remedy if found and found.kind not in _REMEDY_IS_LOG else "",
        address=f"{pod.get('spec', {}).get('hostname', '')}.{pod.get('spec', {}).get('subdomain', '')}".strip("."),
        restarts=restarts,
        restarts_left=_restarts_left(job, pod),
        exit_code=exit_code(pod),
        started=parse_rfc3339(pod.get("status", {}).get("startTime")),
        ended=finished_at(pod),
    )
    if status.state is State.RESTARTING:
        return dataclasses.replace(status, restarts=(*restarts, ended_attempt(pod, len(restarts) + 1)))
    return status


def _restarts_left(job: Object, pod: Object) -> int | None:
    """Return how often the Job may still replace a task's pod after failures; None if that is not known."""
    spec, failures = job.get("spec", {}), pod["metadata"].get("annotations", {}).get(_FAILURES, "0")
    if "backoffLimitPerIndex" in spec:
        return max(0, int(spec["backoffLimitPerIndex"]) - int(failures))
    # Tasks share a `backoffLimit`: that gives no number for one of them.
    is_only_task = "backoffLimit" in spec and int(spec.get("completions") or 1) == 1
    return max(0, int(spec["backoffLimit"]) - int(job.get("status", {}).get("failed") or 0)) if is_only_task else None


def _pending(_job: Object, _pod: Object) -> State:
    return State.PENDING


def _running(job: Object, pod: Object) -> State:
    state = diagnosis.task_container(pod).get("state", {})
    if "running" in state:
        return State.RUNNING
    # The phase is also Running while its container waits to be recreated, and until all containers have ended.
    if "terminated" not in state:
        return State.PENDING
    return _failed(job, pod) if state["terminated"].get("exitCode") else State.SUCCEEDED


def _failed(job: Object, _pod: Object) -> State:
    return State.FAILED if true_condition(job, "Failed") or true_condition(job, "FailureTarget") else State.RESTARTING


_STATES: dict[str, Callable[[Object, Object], State]] = {
    "Pending": _pending,
    "Running": _running,
    "Succeeded": lambda _job, _pod: State.SUCCEEDED,
    "Failed": _failed,
}


def _reason(pod: Object, phase: str, found: Diagnosis | None, now: float) -> str:
    containers = [
        container for part in ("initContainerStatuses", "containerStatuses") for container in pod.get("status", {}).get(part) or ()
    ]
    running = [container["name"] for container in containers if "running" in container.get("state", {})]
    if phase == "Running" and running and _terminated(pod):
        cause = f"{found.message}; " if found else ""
        return f"{cause}its sidecar{'s' * (len(running) > 1)} {', '.join(running)} {'have' if len(running) > 1 else 'has'} not ended yet"
    if found is None:
        return "is being stopped" if phase == "Running" and is_being_deleted(pod) else ""
    created = parse_rfc3339(pod["metadata"].get("creationTimestamp"))
    waited = f"{age(now - created)}: " if phase == "Pending" and created is not None else ""
    return f"{waited}{found.message}"


def _without_pod(snapshot: RunSnapshot, job: Object, name: str) -> TaskStatus:
    if true_condition(job, "Complete"):
        return TaskStatus(name, State.SUCCEEDED)
    if true_condition(job, "Failed"):
        return TaskStatus(name, State.STOPPED, "ended with its Job")
    if job.get("spec", {}).get("suspend"):
        return (
            TaskStatus(name, State.PENDING, message, "queue")
            if (message := queue_reason(snapshot, job))
            else TaskStatus(name, State.STOPPED, "its Job is suspended")
        )
    found = diagnosis.diagnose_events(snapshot.events_of(job))
    return TaskStatus(name, State.PENDING, found.message, found.kind, found.remedy) if found else TaskStatus(name, State.PENDING)


def ended_attempt(pod: Object, attempt: int = 0) -> EndedAttempt:
    """Return how an attempt ended, from its pod as last seen."""
    ended = _terminated(pod)
    found = diagnosis.diagnose_pod(pod) or diagnosis.diagnose_disruption(pod)
    time = parse_rfc3339(ended.get("finishedAt")) or parse_rfc3339(pod["metadata"].get("deletionTimestamp")) or 0.0
    return EndedAttempt(time, attempt, ended.get("exitCode"), found.message if found else DELETED)


def is_role(job: Object) -> bool:
    """Return whether a Job runs a role's tasks."""
    return role_of(job) in role_rules.ROLE_ORDER


def controller_of(jobs: Iterable[Object]) -> str | None:
    """Return the controller of a run's Jobs, which would recreate them, as kubectl names it, e.g. `jobset/digits`; None without one."""
    owners = (owner for job in jobs for owner in job["metadata"].get("ownerReferences") or ())
    return next((f"{owner['kind'].lower()}/{owner['name']}" for owner in owners if owner.get("controller")), None)


def creates_no_more_jobs(jobset: Object) -> bool:
    """Return whether a JobSet creates no more Jobs: it has ended, or is being deleted."""
    return job_has_ended(jobset) or is_being_deleted(jobset)


def creates_no_more_pods(job: Object) -> bool:
    """Return whether a Job creates no more pods: it has ended, or is suspended."""
    return job_has_ended(job) or bool(job.get("spec", {}).get("suspend"))


def job_has_ended(job: Object) -> bool:
    """Return whether a Job or JobSet is complete or has failed."""
    return any(true_condition(job, kind) for kind in ("Complete", "Completed", "Failed"))


def launcher_created_jobset(snapshot: RunSnapshot) -> bool:
    """Return whether the launcher has created the run's JobSet: then it is deleted with the run."""
    return snapshot.jobset is not None and label(snapshot.jobset, INSTANCE_LABEL) == snapshot.name


def queue_of(obj: Object) -> str:
    """Return the Kueue queue of a Job or JobSet, empty if it has none."""
    return label(obj, QUEUE_LABEL)


def queue_reason(snapshot: RunSnapshot, job: Object | None = None) -> str:
    """Return for which queue a suspended Job, or its JobSet, waits, and why it is not admitted; empty without a queue."""
    found = [controller for controller in (job, snapshot.jobset) if controller and queue_of(controller)]  # a JobSet is admitted as a whole
    if not found:
        return ""
    uids = {controller["metadata"].get("uid") for controller in found}
    owned = (one for one in snapshot.workloads if uids & {owner.get("uid") for owner in one["metadata"].get("ownerReferences") or ()})
    conditions = [entry for workload in owned for entry in workload.get("status", {}).get("conditions") or ()]
    kinds = ("QuotaReserved", "Admitted")
    refusal = next((entry["message"] for kind in kinds for entry in conditions if entry["type"] == kind and entry["status"] == "False"), "")
    return f"waits for its queue {queue_of(found[0])}" + (f": {refusal}" if refusal else "")


def role_of(job: Object) -> str:
    """Return the role of a Job or pod."""
    return label(job, COMPONENT_LABEL)


def task_of(pod: Object) -> str:
    """Return the task of a pod."""
    return role_rules.task_name(label(pod, COMPONENT_LABEL), _index(pod))  # type: ignore[arg-type]  # a label is one of the roles


def age(seconds: float) -> str:
    """Return a duration as kubectl writes it: `45s`, `4m`, `3h`, `2d`."""
    rounded = max(0, int(seconds))
    return next((f"{rounded // size}{unit}" for size, unit in _UNITS if rounded >= size), "0s")


def _terminated(pod: Object) -> Object:
    found: Object = diagnosis.task_container(pod).get("state", {}).get("terminated", {})
    return found


def exit_code(pod: Object) -> int | None:
    """Return the exit code of a pod's container, None while it runs."""
    return _terminated(pod).get("exitCode")


def finished_at(pod: Object) -> float | None:
    """Return when a pod's container ended, in seconds since the epoch."""
    return parse_rfc3339(_terminated(pod).get("finishedAt"))


def _index(pod: Object) -> int:
    metadata = pod["metadata"]
    return int((metadata.get("annotations") or {}).get(_INDEX) or (metadata.get("labels") or {}).get(_INDEX) or 0)


def _ended_at(job: Object) -> float | None:
    completed = job.get("status", {}).get("completionTime")
    failed = true_condition(job, "Failed")
    return parse_rfc3339(completed or (failed or {}).get("lastTransitionTime"))
