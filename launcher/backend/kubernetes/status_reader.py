"""The status of a run: reads its objects, their details, and the logs of its first and of failed tasks."""

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from launcher.backend.kubernetes import attendant_annotations, diagnosis, notifier, object_fields, past_attempts, pod_status, run_record
from launcher.backend.kubernetes.client import Cluster, Object, claims_of
from launcher.backend.kubernetes.errors import ForbiddenError
from launcher.backend.kubernetes.informer import Informer, PollBackoff, versions
from launcher.backend.kubernetes.object_fields import is_active, is_being_deleted, label, phase, true_condition
from launcher.backend.kubernetes.pod_logs import PodLogs
from launcher.backend.kubernetes.pod_status import RunSnapshot, task_of
from launcher.backend.kubernetes.run_context import RunContext
from launcher.backend.kubernetes.task_events import TaskEvents
from launcher.errors import LauncherError
from launcher.notify import ledger
from launcher.render.kubernetes.objects import ATTENDANT, INSTANCE_LABEL, NAME_LABEL, TASK_LABEL, VOLUME_LABEL
from launcher.runs.progress import STATUS_LINES
from launcher.runs.status import EndedAttempt, Location, RunStatus, State
from launcher.spec.names import RUN_VOLUME
from launcher.timestamps import parse_rfc3339

LAUNCHER_LABELS = {NAME_LABEL: "tf-launcher"}
# The logs of this many first tasks, of as many failed ones and of the evaluator are read: a thousand a second would overload a cluster.
_MAX_TASKS_READ = 32
# Up to this many pods the status is computed once a second; with more, less often.
_PODS_A_SECOND = 200
_NODES_INTERVAL = 60.0  # seconds between two lists of nodes, while no node takes a pod
_MAX_INTERVAL = 30.0  # seconds after which details of unchanged Jobs and pods are requested again
_MAX_SINGLE_REQUESTS = 4  # the most objects whose events are requested one by one
_ATTENDANT_START_TIMEOUT = 120.0  # seconds that an attendant may take to start
_UID = "involvedObject.uid"
_EMPTY_CONTEXT = RunContext()


def labels_of(run: str) -> dict[str, str]:
    """Return the labels of all objects of a run."""
    return {**LAUNCHER_LABELS, INSTANCE_LABEL: run}


def pods_of(cluster: Cluster, run: str) -> list[Object]:
    """Return the pods of a run's tasks."""
    return cluster.list_objects("Pod", {TASK_LABEL: run})


def snapshot_of(cluster: Cluster, run: str) -> RunSnapshot:
    """Return the current objects of a run."""
    return RunInformer(cluster, run).snapshot()


class RunInformer:
    """A copy of the objects of one run, kept with few requests: the first snapshot lists them, later ones watch them."""

    def __init__(self, cluster: Cluster, run: str) -> None:
        self._cluster, self._run = cluster, run
        self._jobs, self._pods = (Informer(cluster, kind, labels_of(run)) for kind in ("Job", "Pod"))
        self._backoff = PollBackoff(_MAX_INTERVAL)
        self._details = RunSnapshot(run, ())  # as last fetched, beside Jobs and pods
        self.attendant: Object | None = None  # its Job, as last seen

    def pods(self) -> list[Object]:
        """Return the pods of the run's tasks."""
        return [pod for pod in self._pods.objects() if label(pod, TASK_LABEL)]

    def poll_soon(self) -> None:
        """Poll as often as after a change: something may have ended."""
        for informer in (self._jobs, self._pods):
            informer.poll_soon()

    def snapshot(self, known_pods: Collection[str] | None = None) -> RunSnapshot:
        """Return the current objects.

        Details are fetched when a Job or a pod has changed, else with growing pauses. They have claims only while a pod does not run, and events
        only about pods without a diagnosis, unbound claims and Jobs that lack pods; about all Jobs if the pods' names differ from `known_pods`.
        """
        all_jobs, pods = self._jobs.objects(), relevant_pods(self._pods.objects())
        jobs = [job for job in all_jobs if pod_status.is_role(job)]
        self.attendant = next((job for job in all_jobs if pod_status.role_of(job) == ATTENDANT), None)
        if self._backoff.due(versions([*jobs, *pods])):
            try:
                self._details = self._fetch_details(
                    jobs, pods, same_pods=known_pods is None or {pod["metadata"]["name"] for pod in pods} == set(known_pods)
                )
            except LauncherError:
                self._backoff = PollBackoff(_MAX_INTERVAL)  # fetch again at once: the change was not returned yet
                raise
        return dataclasses.replace(self._details, jobs=jobs, pods=pods)

    def _fetch_details(self, jobs: Sequence[Object], pods: Sequence[Object], *, same_pods: bool) -> RunSnapshot:
        cluster, run = self._cluster, self._run
        jobset = _jobset(cluster, run, jobs)
        is_queued = any(
            pod_status.queue_of(controller) and (controller.get("spec") or {}).get("suspend")
            for controller in [*jobs, *([jobset] if jobset else [])]
        )
        workloads = tuple(cluster.list_or_empty("Workload") or cluster.list_or_empty("Workload (v1beta1)")) if is_queued else ()
        snapshot = RunSnapshot(run, jobs, pods, jobset=jobset, workloads=workloads)
        tasks = [pod for pod in pods if label(pod, TASK_LABEL)]
        started = sum(phase(pod) in {"Running", "Succeeded"} for pod in tasks)
        pods_by_role = Counter(map(pod_status.role_of, tasks))
        lacking = [job for job in jobs if not same_pods or pods_by_role[pod_status.role_of(job)] < _completions(job)]
        if started >= sum(map(_completions, jobs)):
            return snapshot if same_pods else dataclasses.replace(snapshot, events=_events(cluster, "Job", _UID, map(_uid, lacking)))
        claims = _claims(cluster, run, jobs)
        unexplained = {
            "Job": lacking,
            "Pod": [pod for pod in pods if phase(pod) == "Pending" and not diagnosis.diagnose_pod(pod)],
            "PersistentVolumeClaim": [claim for claim in claims if phase(claim) != "Bound"],
        }
        events = [event for kind, objects in unexplained.items() for event in _events(cluster, kind, _UID, map(_uid, objects))]
        return dataclasses.replace(snapshot, claims=claims, events=events)


def _uid(obj: Object) -> str:
    return str(obj["metadata"]["uid"])


def _completions(job: Object) -> int:
    return int(job.get("spec", {}).get("completions") or 1)


def _claims(cluster: Cluster, run: str, jobs: Iterable[Object]) -> list[Object]:
    """Return the run's own claim, and the others that its tasks mount."""
    found = {claim["metadata"]["name"]: claim for claim in cluster.list_objects("PersistentVolumeClaim", labels_of(run))}
    for name in {name for job in jobs for name in _mounted_claims(job).values()} - found.keys():
        if claim := cluster.get("PersistentVolumeClaim", name):
            found[name] = claim
    return list(found.values())


def relevant_pods(pods: Iterable[Object]) -> list[Object]:
    """Return the pods that matter for a run's status: its tasks', and others that tie its tasks to a lost node. Pure.

    Pods that mount a volume for one node are scheduled to the node where one of them is, until that one has ended. So a pod of TensorBoard that
    is being deleted on a node that does not answer keeps the chief's next pod from every other node.
    """
    return [pod for pod in pods if label(pod, TASK_LABEL) or (_may_block(pod) and is_being_deleted(pod) and is_active(pod))]


def _may_block(pod: Object) -> bool:
    """Return whether a pod, while it is being deleted on a lost node, keeps other pods or its own Job waiting."""
    return bool(label(pod, VOLUME_LABEL)) or pod_status.role_of(pod) == ATTENDANT


def _jobset(cluster: Cluster, run: str, jobs: Sequence[Object]) -> Object | None:
    """Return the JobSet that creates a run's Jobs: only it tells whether a failed one is created again."""
    kind, _, name = (pod_status.controller_of(jobs) or "").partition("/")
    if not jobs:
        return next(iter(cluster.list_or_empty("JobSet", labels_of(run))), None)
    try:
        return cluster.get("JobSet", name) if kind == "jobset" else None
    except ForbiddenError:  # without that right only the Jobs tell the status
        return None


def _events(cluster: Cluster, kind: str, field: str, values: Iterable[str]) -> list[Object]:
    """Return the events about objects with these values of a field: by one request per object, or for many objects all events of the kind."""
    all_values = list(values)
    queries = [{field: value} for value in all_values] if len(all_values) <= _MAX_SINGLE_REQUESTS else [{"involvedObject.kind": kind}]
    try:
        return [event for fields in queries for event in cluster.list_objects("Event", fields=fields)]
    except ForbiddenError:  # without that right fewer reasons are known
        return []


class StatusReader:
    """The status of one run, from a watched copy of its objects and the new lines of its logs."""

    def __init__(self, cluster: Cluster, run: str, *, detailed: bool = True) -> None:
        """Watch `run`; `detailed` includes attempts whose pods were deleted, and the nodes if none takes a pod."""
        self.cluster, self.run, self._detailed = cluster, run, detailed
        self.snapshot = RunSnapshot(run, ())
        self.logs = PodLogs(cluster)
        self._informer = RunInformer(cluster, run)
        self._task_events: TaskEvents | None = None
        self._next = 0.0
        self._pods: dict[str, object_fields.Object] = {}  # by name, as last seen
        self._past_attempts: dict[str, tuple[str, EndedAttempt]] = {}  # pod name -> task, and how its attempt ended
        self._last: RunStatus | None = None
        self._nodes: Sequence[Object] = ()
        self._next_nodes = 0.0
        self._ended_streams = 0
        self._record: Object | None = None
        self._record_backoff = PollBackoff(_MAX_INTERVAL)

    def pods(self) -> list[Object]:
        """Return the pods of the run's tasks. Raises LauncherError."""
        return self._informer.pods()

    @property
    def attendant(self) -> Object | None:
        """The Job of the run's attendant, as last seen; None without one."""
        return self._informer.attendant

    def is_attended(self) -> bool:
        """Return whether the run has an attendant that works, has finished, or may still start, as last seen."""
        job = self.attendant
        if job is None or true_condition(job, "Failed"):
            return False
        created = parse_rfc3339(job["metadata"].get("creationTimestamp"))
        may_start = created is None or self.cluster.now() - created < _ATTENDANT_START_TIMEOUT
        return may_start or bool(job.get("status", {}).get("ready")) or true_condition(job, "Complete") is not None

    def is_unchanged(self) -> bool:
        """Return whether Jobs and pods are unchanged since they were last seen. Call it before an action that cannot be undone. Raises LauncherError."""
        now = snapshot_of(self.cluster, self.run)
        return versions([*now.jobs, *now.pods]) == versions([*self.snapshot.jobs, *self.snapshot.pods])

    def status(self, context: RunContext = _EMPTY_CONTEXT) -> RunStatus | None:
        """Return the status of the run, at most a second old, with many pods older; None if it has no Jobs. Raises LauncherError.

        `context` has facts that its Jobs do not have: the user who started the run, and its missing objects.
        """
        if time.monotonic() < self._next:
            return self._last
        if self._ended_streams != (ended := self.logs.ended_streams):
            self._ended_streams = ended
            self._informer.poll_soon()
        self._last = self._refresh(context)
        if self.logs.unanswered:
            # Reading the logs of a lost node took long: the cluster may have noticed the loss meanwhile.
            with contextlib.suppress(LauncherError):
                self._last = self._refresh(context)
        self._next = time.monotonic() + max(1.0, len(self.snapshot.pods) / _PODS_A_SECOND)
        return self._last

    def _refresh(self, context: RunContext) -> RunStatus | None:
        self.snapshot = self._add_nodes(self._add_past_attempts(self._informer.snapshot(self._pods.keys() if self._detailed else None)))
        if not self.snapshot.jobs:
            return None
        notified = ledger.outcomes(notifier.entries_of(self.attendant)) or context.notified
        context = dataclasses.replace(
            context, location=location_of(self.snapshot, self.cluster), attended=self.is_attended(), notified=notified
        )
        recorded = self._end_of_expired_run() or self._end_recorded_by_attendant(context.location)
        return context.add_to(recorded) if recorded else self._read(context)

    def _add_past_attempts(self, snapshot: RunSnapshot) -> RunSnapshot:
        """Add the attempts whose pods were deleted; look for new ones if the pods have changed."""
        pods = {pod["metadata"]["name"]: pod for pod in snapshot.pods}
        if self._detailed and pods.keys() != self._pods.keys():
            found = [
                name
                for job in snapshot.jobs
                for name in past_attempts.attempts(job, snapshot.events, snapshot.pods, self._pods)
                if name not in self._past_attempts
            ]
            events = [*snapshot.events, *_events(self.cluster, "Pod", "involvedObject.name", found)]
            for job in snapshot.jobs:
                for name, attempt in past_attempts.attempts(job, events, snapshot.pods, self._pods).items():
                    self._past_attempts.setdefault(name, attempt)
        self._pods = pods
        by_task: dict[str, list[EndedAttempt]] = {}
        for task, ended in self._past_attempts.values():
            by_task.setdefault(task, []).append(ended)
        return dataclasses.replace(snapshot, past_attempts=by_task)

    def _add_nodes(self, snapshot: RunSnapshot) -> RunSnapshot:
        """Add the nodes of the cluster if none takes a pod: their size tells whether waiting may help."""
        if not self._detailed or not any(map(diagnosis.is_unschedulable, snapshot.pods)):
            return snapshot
        if time.monotonic() >= self._next_nodes:
            with contextlib.suppress(ForbiddenError):
                self._nodes = self.cluster.nodes()
            self._next_nodes = time.monotonic() + _NODES_INTERVAL
        return dataclasses.replace(snapshot, nodes=self._nodes)

    def _end_of_expired_run(self) -> RunStatus | None:
        """Return the recorded end of the run if `kubernetes.ttl` has deleted some of its Jobs: the others do not tell all."""
        if all(job.get("spec", {}).get("ttlSecondsAfterFinished") is None for job in self.snapshot.jobs):
            return None
        present = frozenset(map(pod_status.role_of, self.snapshot.jobs))
        if self._record_backoff.due(present):
            self._record = self.cluster.get("ConfigMap", run_record.name_of(self.run))
        return run_record.final(self._record) if run_record.roles(self._record) - present else None

    def _end_recorded_by_attendant(self, location: Location | None) -> RunStatus | None:
        """Return the run's end from the attendant's annotations, which cover deleted pods; None while its Jobs are active."""
        recorded = attendant_annotations.final(self._informer.attendant)
        if recorded is None or not all(map(pod_status.creates_no_more_pods, self.snapshot.jobs)):
            return None
        if recorded.state is State.FAILED and all(true_condition(job, "Complete") for job in self.snapshot.jobs):
            return None  # a user has resumed it since
        return dataclasses.replace(recorded, run_dir=location)

    def _read(self, context: RunContext) -> RunStatus:
        tasks = pod_status.tasks(self.snapshot, self.cluster.now())
        if self._task_events is None:
            self._task_events = TaskEvents(tasks[0].name if tasks else "")
        failed = [task.name for task in tasks if task.state is State.FAILED][:_MAX_TASKS_READ]
        names = {*(task.name for task in tasks[:_MAX_TASKS_READ]), *(task.name for task in tasks if task.name == "evaluator"), *failed}
        pods = [pod for pod in self.snapshot.pods if task_of(pod) in names]
        self._task_events.apply(self.logs.new_lines(pods, tail=STATUS_LINES))
        if self._last is not None:  # a one-off query needs no stream
            self.logs.stream(pods)
        return pod_status.run_status(self.snapshot, tasks, self._task_events, context)


def location_of(snapshot: RunSnapshot, cluster: Cluster) -> Location | None:
    """Return the location of the run's files, None without a volume."""
    claim = next((claims[RUN_VOLUME] for job in snapshot.jobs if RUN_VOLUME in (claims := _mounted_claims(job))), None)
    return claim_location(cluster, claim, snapshot.name) if claim else None


def _mounted_claims(job: object_fields.Object) -> dict[str, str]:
    return claims_of(job.get("spec", {}).get("template", {}).get("spec", {}))


def claim_location(cluster: Cluster, claim: str, run: str) -> Location:
    """Return the directory of a run on a claim of the cluster."""
    return Location("claim", claim, f"{run}/", cluster.description())
