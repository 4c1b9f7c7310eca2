"""The Kubernetes backend: the calls behind the CLI's verbs.

It keeps no state of its own: the cluster's Jobs restart tasks, its API has their status, and a record there (run_record.py) has the spec.
This machine only stores in which cluster a run was started, and the logs that it has read (runs/cluster_state.py).
"""

import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from launcher.backend.kubernetes import (
    diff,
    expired,
    helper_pod,
    log_lines,
    missing_objects,
    notifier,
    pod_status,
    reconcile,
    run_objects,
    run_record,
    status_reader,
    status_without_jobs,
    submit,
    teardown,
)
from launcher.backend.kubernetes.client import Cluster, Object
from launcher.backend.kubernetes.errors import UNREACHABLE_TIMEOUT, TransientError, WebhookError, run_unreachable
from launcher.backend.kubernetes.object_fields import is_being_deleted, label
from launcher.backend.kubernetes.pod_logs import PodLogs
from launcher.backend.kubernetes.pod_status import RunSnapshot
from launcher.backend.kubernetes.run_context import BACKEND, MissingObjects, RunContext
from launcher.backend.model import ClusterRef, PlannedRun, TensorBoardAddress, spec_of
from launcher.errors import LauncherError, UsageError, check_tasks, did_you_mean
from launcher.notify import ledger
from launcher.notify.delivery import Channel
from launcher.render.kubernetes import manifests
from launcher.render.kubernetes.objects import COMPONENT_LABEL, INSTANCE_LABEL, Run
from launcher.render.targets import RenderSource
from launcher.runs import cluster_state, task_stacks
from launcher.runs.artifacts import Artifact, ArtifactStream, still_running_error
from launcher.runs.status import ENDED, Location, LogLine, RunStatus, State, TaskStatus
from launcher.spec.models import Limits
from launcher.spec.notification import Notify
from launcher.spec.quantities import parse_duration
from trainer.stacks import PORT, ProcessStacks

_NOTIFY_TIMEOUT = 60.0  # seconds for which a launcher tries to notify people before it exits


@dataclasses.dataclass
class _WatchedRun:
    """State of one run while this process watches it."""

    cluster: Cluster
    status_reader: status_reader.StatusReader
    missing_objects_watch: missing_objects.MissingObjectsWatch | None = None  # None if missing objects are not looked for
    without_jobs: tuple[RunSnapshot, RunStatus] | None = None  # a snapshot without Jobs, and the status derived from it
    user: str | None = None  # who started it, empty if not known
    last: RunStatus | None = None
    expired: RunStatus | None = None  # its end (UNKNOWN if that is not known), if its Jobs have expired
    answered: float = 0.0  # last answer of the cluster, of time.monotonic
    start: submit.Start | None = None  # started by this process and not complete yet
    reconciler: reconcile.Reconciler | None = None
    reconciled: object = None  # the snapshot that was last reconciled
    webhook_error: str = ""  # the last message about an admission webhook
    lock: threading.RLock = dataclasses.field(default_factory=threading.RLock)

    @property
    def record(self) -> Object | None:
        """The run's record, as last read; None if it has none or missing objects are not looked for."""
        return self.missing_objects_watch.record if self.missing_objects_watch else None


class KubernetesBackend:
    """Runs plans as Jobs of a cluster. See launcher.backend.model.Backend."""

    def __init__(self, runs: Path, cluster: ClusterRef) -> None:
        self._runs, self._cluster_ref = runs.absolute(), cluster
        self._clusters: dict[str, Cluster] = {}  # by run
        self._watched_runs: dict[str, _WatchedRun] = {}
        self._leases: dict[str, run_record.StartLease] = {}  # of runs that this process is about to start
        self._ended: dict[str, RunStatus] = {}  # of runs that this process stopped and that have no record in the cluster
        self._notifiers: dict[str, notifier.Notifier] = {}
        self._spec_dirs: dict[str, str] = {}  # of runs that this process has started
        self._stopping: list[str] = []  # by this process; a run stopped twice appears twice

    def prepare(self, run: PlannedRun) -> Iterator[str]:
        """Let the API server check every object before one is created; yield notices for the user."""
        yield from run_objects.check(self._cluster(run.plan.name), self._kubernetes_run(run))

    def differences(self, run: PlannedRun) -> Iterator[str]:
        """Yield the lines of a unified diff between the run's current objects and those that `start` would apply."""
        yield from diff.differences(self._cluster(run.plan.name), self._kubernetes_run(run))

    @contextlib.contextmanager
    def reserve(self, run: PlannedRun) -> Iterator[None]:
        """Keep every other launcher out by a lease in the cluster; restore the record if nothing was started."""
        name = run.plan.name
        cluster = self._cluster(name)
        self._leases[name] = submit.reserve(cluster, self._kubernetes_run(run))
        try:
            yield
        finally:
            if lease := self._leases.pop(name, None):
                with contextlib.suppress(LauncherError):  # report the error that prevented the start instead
                    run_record.undo(cluster, lease)

    def start(self, run: PlannedRun, *, is_cancelled: Callable[[], bool] | None = None) -> None:
        """Apply the run's objects. The run does not depend on this process. Raises UsageError if it runs already."""
        plan, name, is_cancelled = run.plan, run.plan.name, is_cancelled or submit.never_cancelled
        cluster, planned = self._cluster(name), self._kubernetes_run(run)
        self._forget(name)
        self._ended.pop(name, None)
        self._notifiers.pop(name, None)
        self._spec_dirs[name] = plan.spec_dir
        # Before anything is created: if this process is killed, the other verbs still find the run.
        is_explicit = planned.options.namespace is not None
        restore_start_record = cluster_state.record_start(
            self._runs, dataclasses.replace(_namespace_ref(cluster), is_explicit=is_explicit), name
        )
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(restore_start_record)
            lease = self._leases.pop(name, None) or submit.reserve(cluster, planned, is_cancelled)
            on_failure.pop_all()
        start = submit.Start(cluster, planned, lease, is_cancelled)
        start.apply(run.spec, restore_start_record)
        watched = self._watched(name)
        tasks = tuple(TaskStatus(task.name, State.PENDING) for task in plan.tasks)
        location = status_reader.claim_location(cluster, planned.claim, name) if planned.storage else None
        # From here on it runs: if the cluster does not answer now, retry as later.
        watched.last = RunStatus(name, BACKEND, State.PENDING, run_dir=location, strategy=plan.strategy, started=cluster.now(), tasks=tasks)
        watched.answered = time.monotonic()
        watched.start = None if start.try_complete() else start
        teardown.sweep_tensorboards(cluster)

    def status(self, name: str) -> RunStatus:
        """Return the status of the run. Raises UsageError if there is none of that name."""
        return self._status(self._watched(name), name)

    def _status(self, watched: _WatchedRun, name: str) -> RunStatus:
        with watched.lock:
            try:
                context = self._context(watched, name)
                watched.last = watched.status_reader.status(context) or context.add_to(self._without_jobs(watched, name))
            except TransientError as error:
                if watched.last is None:
                    raise
                if watched.last.state in ENDED:
                    return watched.last
                unreachable_for = time.monotonic() - watched.answered
                if unreachable_for > UNREACHABLE_TIMEOUT:
                    raise run_unreachable(name, error) from error
                reason = f"the cluster {error.problem} for {unreachable_for:.0f} s; the run continues"
                return dataclasses.replace(watched.last, reason=reason, reason_task="")
            watched.answered = time.monotonic()
            return watched.last

    def _context(self, watched: _WatchedRun, name: str) -> RunContext:
        """Return the context of a run: its user, whether that is this user, and which of its recorded objects are missing."""
        watch = watched.missing_objects_watch
        missing = watch.check(watched.status_reader.snapshot.jobs) if watch else MissingObjects()
        if watched.user is None:
            # The record was just read.
            watched.user = run_record.user(watched.record or watched.cluster.get("ConfigMap", run_record.name_of(name)))
        is_mine = not watched.user or watched.cluster.user() in {"", watched.user}
        notified = ledger.outcomes(notifier.entries_of(watched.record))
        return RunContext(user=watched.user, is_mine=is_mine, attended=False, notified=notified, missing_objects=missing)

    def _without_jobs(self, watched: _WatchedRun, name: str) -> RunStatus:
        cluster = watched.cluster
        snapshot = watched.status_reader.snapshot
        if watched.without_jobs and watched.without_jobs[0] is snapshot:
            return watched.without_jobs[1]
        status = status_without_jobs.status(cluster, snapshot, self._log_directory(cluster, name), self._ended.get(name))
        if status is None and watched.last is not None:  # it existed a moment ago
            raise LauncherError(
                f"nothing is left of the run {name} in {cluster.description()}: all its objects, or the namespace, were deleted",
                "check that the namespace exists (kubectl get namespace); `launcher up` starts the run from its first step, as its volume is gone too",
            )
        if status is None:
            others = _names(cluster, _records(cluster))
            raise UsageError(
                f"there is no run {name} in {cluster.description()}",
                f"{did_you_mean(name, others)}the runs there are {', '.join(others)}"
                if others
                else "start one with `launcher up FILE --on kubernetes`",
            )
        if status.state is State.UNKNOWN and watched.missing_objects_watch is not None:  # not for a list of all runs
            status = self._status_of_expired(watched, name, status)
        watched.without_jobs = snapshot, status
        return status

    def _status_of_expired(self, watched: _WatchedRun, name: str, unknown: RunStatus) -> RunStatus:
        """Return how a run whose Jobs have expired has ended; record it, so that it is determined once."""
        if watched.expired is None:
            try:
                run = self._run_of_record(name)
            except TransientError:
                raise
            except LauncherError as error:  # e.g. its spec is of another version
                run, unknown = None, dataclasses.replace(unknown, reason=f"{unknown.reason}; {error.message}")
            watched.expired = expired.status(watched.cluster, unknown, run, watched.record) if run else unknown
            if watched.expired.state is not State.UNKNOWN:
                with contextlib.suppress(LauncherError):  # without the right to write it, it is determined again next time
                    run_record.write_end(watched.cluster, watched.expired, run_record.start_id(watched.record))
        return watched.expired

    def spec(self, name: str) -> dict[str, Any] | None:
        """Return the spec of the run's last start, from the cluster."""
        return run_record.spec(self._cluster(name).get("ConfigMap", run_record.name_of(name)))

    def reconcile(self, name: str) -> list[str]:
        """Do the work of a watching launcher (reconcile.py), send messages that are due, record the end; return messages for the user."""
        watched = self._watched(name)
        messages: list[str] = []
        try:
            self._complete_start(watched)
            with watched.lock:
                snapshot, status = watched.status_reader.snapshot, watched.last
                is_new = status is not None and snapshot is not watched.reconciled and bool(snapshot.jobs)
                if is_new:
                    watched.reconciled = snapshot
            if is_new and status is not None:
                self._reconcile(watched, name, snapshot, status, messages)
            if status is not None:  # last: a failure here must not keep the run from being reconciled
                messages.extend(self._notifier(name).send_due(status))
        except TransientError as error:
            watched.reconciled = None  # the cluster does not answer; reconcile once it does
            if isinstance(error, WebhookError) and error.message != watched.webhook_error:  # else `status` reports it
                watched.webhook_error = error.message
                messages.append(f"{error.message}: {error.remedy}")
        except LauncherError as error:  # a failure to reconcile must not end the run
            messages.append(f"{error.message}: {error.remedy}")
        return messages

    def finish(self, name: str) -> Iterator[str]:
        """Wait until people were notified of a run's end, if that is up to this process; yield failures."""
        with contextlib.suppress(LauncherError):  # the run has ended: an error here must not fail the command
            yield from self._notifier(name).finish(self.status(name))

    def _notifier(self, name: str) -> notifier.Notifier:
        if name not in self._notifiers:
            spec = self.spec(name) or {}
            try:
                notify = Notify.model_validate(spec.get("notify") or {})
            except ValueError:  # of another version, whose launcher or attendant sends the messages
                notify = Notify()
            has_attendant = (spec.get("kubernetes") or {}).get("attendant") is not None
            channels = functools.partial(self._channels, name, notify, has_attendant=has_attendant)
            self._notifiers[name] = notifier.Notifier(self._cluster(name), name, _NOTIFY_TIMEOUT, channels)
        return self._notifiers[name]

    def _channels(self, name: str, notify: Notify, *, has_attendant: bool) -> notifier.Channels:
        """Return the channels by which a watching launcher notifies people: not the webhook while an attendant serves it."""
        channels: dict[str, Callable[[], Channel]] = {}
        cluster, reader, webhook = self._cluster(name), self._watched(name).status_reader, notify.webhook
        if notify.command is not None:
            channel = Channel("command", tuple(notify.command), self._spec_dirs.get(name) or str(Path.cwd()))
            channels["command"] = lambda: channel
        if webhook is not None and (not has_attendant or (reader.attendant is not None and not reader.is_attended())):
            channels["webhook"] = lambda: notifier.webhook_from_secret(cluster, webhook)
        return channels

    def _complete_start(self, watched: _WatchedRun) -> None:
        """Complete a start of this process during which the cluster stopped answering."""
        if watched.start is not None:
            try:
                watched.start.complete()
            except TransientError:
                return
            except LauncherError:
                watched.start = None
                raise
            watched.start = None

    def _reconcile(self, watched: _WatchedRun, name: str, snapshot: RunSnapshot, status: RunStatus, messages: list[str]) -> None:
        if watched.reconciler is None:
            logs = PodLogs(watched.cluster, self._log_directory(watched.cluster, name))
            watched.reconciler = reconcile.Reconciler(watched.cluster, name, _limit(watched, "node_lost"), logs.new_lines)
        messages.extend(watched.reconciler.reconcile(snapshot, status))
        failure = watched.reconciler.give_up_reason(snapshot, status, _limit(watched, "start_timeout"))
        if failure and status.state not in ENDED and watched.status_reader.is_unchanged():
            messages.append(failure)
            failed = status.with_end(State.FAILED, failure, watched.cluster.now())
            teardown.stop(watched.cluster, failed, name, PodLogs(watched.cluster, self._log_directory(watched.cluster, name)), now=False)
            self._forget(name)
        elif status.state in {State.SUCCEEDED, State.FAILED} and not run_record.starting_launcher(watched.record, watched.cluster.now()):
            # Not if its Jobs are suspended: it may continue. During another start they are those of the start before.
            run_record.write_end(watched.cluster, status, run_record.start_id(watched.record))

    def runs(self) -> list[RunStatus]:
        """Return the status of every run of the namespace, newest first."""
        cluster = Cluster(self._cluster_ref.context, self._cluster_ref.namespace)
        known = []
        records = {record["metadata"]["labels"].get(INSTANCE_LABEL): record for record in _records(cluster)}
        for name in _names(cluster, records.values()):
            with contextlib.suppress(UsageError):  # removed meanwhile
                self._clusters[name] = cluster  # later calls concern the listed run, even if one of its name was last started elsewhere
                watched = _WatchedRun(
                    cluster, status_reader.StatusReader(cluster, name, detailed=False), user=run_record.user(records.get(name))
                )
                known.append(self._status(watched, name))
        return sorted(known, key=lambda status: status.started or 0, reverse=True)

    def logs(self, name: str, *, tasks: list[str], follow: bool, since: float | None = None, tail: int | None = None) -> Iterator[LogLine]:
        """Yield the lines of `tasks` (all when empty) in order of time, including earlier attempts; `tail` counts per task."""
        watched = self._watched(name)
        names = [task.name for task in self._status(watched, name).tasks]
        check_tasks(name, tasks, names)
        selection = log_lines.LogSelection(tuple(tasks), since, tail)
        if not follow:
            return log_lines.read(watched.cluster, name, self._log_directory(watched.cluster, name), selection)
        return log_lines.follow(
            watched.cluster,
            name,
            self._log_directory(watched.cluster, name),
            selection,
            functools.partial(self._pods, name),
            functools.partial(self._may_end_following, name),
            watched.status_reader.logs,
        )

    def _pods(self, name: str) -> list[Object]:
        return self._watched(name).status_reader.pods()

    def _may_end_following(self, name: str) -> bool:
        """Return whether a run has ended and this process is not still storing its last lines."""
        return name not in self._stopping and self.status(name).state in ENDED

    def stacks(self, name: str, task: str) -> tuple[ProcessStacks, ...]:
        """Return the current Python stacks of a task's processes. Raises LauncherError if none answers."""
        from launcher.backend.kubernetes import port_forward  # with all of the client, which takes a second

        running = [pod for pod in self._pods(name) if pod_status.task_of(pod) == task and pod["status"].get("phase") == "Running"]
        if not running:
            raise task_stacks.no_parent_error(task)
        newest = max(running, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))["metadata"]["name"]
        with contextlib.closing(port_forward.connect(self._cluster(name), newest, PORT)) as connection:
            connection.settimeout(task_stacks.ANSWER_TIMEOUT)
            return task_stacks.receive(task, connection)

    def stop(self, name: str, *, now: bool = False, report: Callable[[str], object] | None = None) -> dict[str, int]:
        """Ask every task to save and stop, or kill all at once, until only the run's data and record are left; return the number of deleted objects by kind. Idempotent."""
        watched = self._watched(name)
        status = self._status(watched, name)
        is_reserved = name in self._leases
        with watched.lock:
            # Without Jobs it is still starting, or nothing is left to stop.
            last_status = status if watched.status_reader.snapshot.jobs or (status.state is State.PENDING and not is_reserved) else None
        if not is_reserved:
            run_record.revoke(watched.cluster, name)
        self._stopping.append(name)
        try:
            logs = PodLogs(watched.cluster, self._log_directory(watched.cluster, name))
            ended, removed = teardown.stop(watched.cluster, last_status, name, logs, now=now, report=report)
        finally:
            self._stopping.remove(name)
        self._forget(name)
        if ended is not None:
            self._ended[name] = ended
        teardown.sweep_tensorboards(watched.cluster)
        return removed

    def delete(self, name: str) -> None:
        """Delete the run's data and its record. Raises UsageError while the run is running."""
        if self.status(name).state not in ENDED:
            raise still_running_error(name, BACKEND)
        cluster = self._cluster(name)
        run_objects.remove(cluster, name)
        run = self._run_of_record(name)
        if run is not None and run.options.claim is not None:
            helper_pod.delete_directory(cluster, run)
        else:
            claim = cluster.get("PersistentVolumeClaim", name)
            is_other = claim is not None and label(claim, INSTANCE_LABEL) != name
            if is_other and (run is None or run.has_own_claim):
                raise LauncherError(
                    f"the claim {name} in {cluster.description()} was not created for this run; nothing was deleted",
                    f"delete what the run has stored there yourself: its directory is {name}/",
                )
            if not is_other:
                run_objects.delete_claim(cluster, name)
        cluster.delete("ConfigMap", run_record.name_of(name))
        self._forget(name)
        cluster_state.forget(self._runs, _namespace_ref(cluster), name)

    def rename(self, name: str, new_name: str) -> tuple[Location, ...]:
        """Rename the run's directory on its volume, and its stored logs on this machine."""
        cluster, run = self._cluster(name), self._run_of_record(name)
        run_objects.remove(cluster, name)
        if run is None:
            raise LauncherError(
                f"{name} was not started by `launcher up`: its spec is not known",
                f"delete its data: launcher down {name} --delete-data --on {BACKEND}",
            )
        lease = self._leases.get(name)
        if lease is not None:
            run_record.verify(cluster, lease)
        claim = cluster.get("PersistentVolumeClaim", run.claim) if run.storage is not None else None
        has_data = claim is not None and not is_being_deleted(claim)
        if has_data:
            helper_pod.rename_directory(cluster, run, new_name)
        if lease is not None:  # if the new start fails, the old run must not come back under its old name
            self._leases[name] = run_record.clear(cluster, lease)
        cluster_state.rename(self._runs, _namespace_ref(cluster), name, new_name)
        self._forget(name)
        return (status_reader.claim_location(cluster, run.claim, new_name),) if has_data else ()

    def fetch(self, name: str, artifact: Artifact) -> contextlib.AbstractContextManager[ArtifactStream]:
        """Open an artifact of the run for a `with` block. Raises UsageError if the run has none of the kind."""
        from launcher.backend.kubernetes import download  # with all of the client, which takes a second

        self.status(name)  # raises if there is no such run
        return download.open_artifact(self._cluster(name), name, self._run_of_record(name), artifact)

    def tensorboard(self, name: str, *, host: str | None, port: int | None) -> TensorBoardAddress:
        """Forward a port of this machine to the run's TensorBoard in the cluster."""
        from launcher.backend.kubernetes import port_forward  # with all of the client, which takes a second

        forward = port_forward.Forward(self._cluster(name), name, host or "127.0.0.1", port)
        return TensorBoardAddress(forward.url, forward.serve)

    def _kubernetes_run(self, run: PlannedRun) -> Run:
        return run_objects.with_claim_access(
            self._cluster(run.plan.name), manifests.run_of(RenderSource(spec_of(run.spec), run.plan, Path.cwd()))
        )

    def _run_of_record(self, name: str) -> Run | None:
        """Return the run from its record; None without one."""
        stored = self.spec(name)
        if stored is None:
            return None
        return run_objects.with_claim_access(self._cluster(name), run_objects.run_of_spec(spec_of(stored)))

    def _watched(self, name: str) -> _WatchedRun:
        if name not in self._watched_runs:
            cluster = self._cluster(name)
            self._watched_runs[name] = _WatchedRun(
                cluster, status_reader.StatusReader(cluster, name), missing_objects.MissingObjectsWatch(cluster, name)
            )
        return self._watched_runs[name]

    def _forget(self, name: str) -> None:
        self._watched_runs.pop(name, None)

    def _cluster(self, name: str) -> Cluster:
        """Return a run's cluster: the one that the user names, else the one where this machine started it, else the kubeconfig's."""
        if name not in self._clusters:  # once: its files on this machine may be moved or deleted later
            ref = cluster_state.last_started(self._runs, name, self._cluster_ref.context, self._cluster_ref.namespace)
            self._clusters[name] = Cluster(ref.context, ref.namespace)
        return self._clusters[name]

    def _log_directory(self, cluster: Cluster, name: str) -> Path:
        return cluster_state.logs(self._runs, _namespace_ref(cluster), name)


def _limit(watched: _WatchedRun, limit: str) -> float:
    """Return a limit of the run's spec in seconds, or its default."""
    return parse_duration(((run_record.spec(watched.record) or {}).get("limits") or {}).get(limit, Limits.model_fields[limit].default))


def _names(cluster: Cluster, records: Iterable[Object]) -> list[str]:
    """Return the names of the namespace's runs."""
    found = [*cluster.list_objects("Job", status_reader.LAUNCHER_LABELS), *records]
    found += cluster.list_objects("PersistentVolumeClaim", status_reader.LAUNCHER_LABELS)
    return sorted({obj["metadata"]["labels"].get(INSTANCE_LABEL, "") for obj in found} - {""})


def _records(cluster: Cluster) -> list[Object]:
    return cluster.list_objects("ConfigMap", {**status_reader.LAUNCHER_LABELS, COMPONENT_LABEL: run_record.RECORD_COMPONENT})


def _namespace_ref(cluster: Cluster) -> cluster_state.NamespaceRef:
    return cluster_state.NamespaceRef(cluster.context, cluster.namespace)
