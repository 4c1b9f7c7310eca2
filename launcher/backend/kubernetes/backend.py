"""The Kubernetes backend: the calls behind the CLI's verbs.

It keeps nothing that matters: the cluster's Jobs restart tasks, its API tells how they are, and a record there (run_record.py) has
the spec. This machine keeps only where a run was started, and the output of pods that are gone since (runs/cluster_cache.py).
"""

import contextlib
import dataclasses
import functools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from launcher.backend.kubernetes import (
    diff,
    ended_status,
    expired,
    helper_pod,
    inventory,
    log_lines,
    notifier,
    pod_status,
    reconcile,
    run_objects,
    run_record,
    status_source,
    submit,
    teardown,
)
from launcher.backend.kubernetes.client import Cluster, Object
from launcher.backend.kubernetes.ended_status import BACKEND
from launcher.backend.kubernetes.errors import UnreachableError, run_unreachable
from launcher.backend.kubernetes.pod_logs import PodLogs
from launcher.backend.kubernetes.pod_status import COMPONENT, INSTANCE, ClusterSnapshot
from launcher.backend.kubernetes.run_context import Differences, RunContext
from launcher.backend.model import ClusterRef, PlannedRun, TensorBoardAddress
from launcher.errors import LauncherError, UsageError, check_tasks, did_you_mean
from launcher.images import image_for
from launcher.notify import ledger
from launcher.notify.outbox import Channel
from launcher.plan import planner
from launcher.plan.target_rules import TARGET_RULES
from launcher.render.kubernetes import manifests
from launcher.render.kubernetes.objects import Run
from launcher.render.targets import Source
from launcher.runs import cluster_cache, task_stacks
from launcher.runs.status import ENDED, Location, LogLine, RunStatus, State, TaskStatus
from launcher.runs.stored import Artifact, Stored, still_running_error
from launcher.spec.models import ClusterSpec
from launcher.spec.notification import Notify
from launcher.spec.quantities import parse_duration
from trainer.stacks import PORT, ProcessStacks

# Seconds for which a cluster that has answered may be away, for example while its API server is replaced. The run continues meanwhile.
AWAY_TIMEOUT = 600.0
_NOTIFY_TIMEOUT = 60.0  # seconds for which a launcher tries to notify people: it does not end before


@dataclasses.dataclass
class _WatchedRun:
    """State of one run while this process looks at it."""

    cluster: Cluster
    watcher: status_source.Watcher
    record_watch: inventory.ObjectWatch | None = None  # None where objects that the run lacks are not looked for
    spec: dict[str, Any] | None = None
    without_jobs: tuple[ClusterSnapshot, RunStatus] | None = None  # a snapshot, and the status without Jobs that was made of it
    user: str | None = None  # the user who started it, empty where that is not known
    last: RunStatus | None = None
    expired: RunStatus | None = None  # how it ended, or that this is not known, where its Jobs have expired
    answered: float = 0.0  # when the cluster answered last, of time.monotonic
    start: submit.Start | None = None  # ours, while it is not finalized
    reconciler: reconcile.Reconciler | None = None
    reconciled: object = None  # what was seen when it was reconciled last
    lock: threading.RLock = dataclasses.field(default_factory=threading.RLock)


class KubernetesBackend:
    """Runs plans as Jobs of a cluster. See launcher.backend.model.Backend."""

    def __init__(self, runs: Path, cluster: ClusterRef) -> None:
        self._runs, self._cluster_ref = runs.absolute(), cluster
        self._clusters: dict[str, Cluster] = {}  # where each run is
        self._watched_runs: dict[str, _WatchedRun] = {}
        self._leases: dict[str, run_record.StartLease] = {}  # of runs that this process is about to start again
        self._ended: dict[str, RunStatus] = {}  # of runs that this process stopped, where the cluster has no record of them
        self._notifiers: dict[str, notifier.Notifier] = {}
        self._spec_dirs: dict[str, str] = {}  # of runs that this process has started
        self._stopping: list[str] = []  # in this process; a run stopped twice appears twice

    def prepare(self, run: PlannedRun) -> Iterator[str]:
        """Let the API server check every object before one is made; yield what a person should know."""
        yield from run_objects.check(self._cluster(run.plan.name), self._run(run))

    def differences(self, run: PlannedRun) -> Iterator[str]:
        """Yield the lines of a unified diff between what is there and what `start` would make of it."""
        yield from diff.differences(self._cluster(run.plan.name), self._run(run))

    @contextlib.contextmanager
    def reserve(self, run: PlannedRun) -> Iterator[None]:
        """Keep every other launcher out by a lease in the cluster; the record is as it was again where nothing was started."""
        name = run.plan.name
        cluster = self._cluster(name)
        self._leases[name] = submit.reserve(cluster, self._run(run))
        try:
            yield
        finally:
            if lease := self._leases.pop(name, None):
                with contextlib.suppress(LauncherError):  # the error that has kept it from starting is the one to tell
                    run_record.undo(cluster, lease)

    def start(self, run: PlannedRun, *, still_wanted: Callable[[], bool] | None = None) -> None:
        """Apply the run's objects. In the background or not, the cluster keeps the run. Raises UsageError when it runs already."""
        plan, name, still_wanted = run.plan, run.plan.name, still_wanted or submit.always
        cluster, made = self._cluster(name), self._run(run)
        self._forget(name)
        self._ended.pop(name, None)
        self._notifiers.pop(name, None)
        self._spec_dirs[name] = plan.spec_dir
        # Before anything is made: whatever becomes of this process, the other verbs find it.
        is_explicit = made.options.namespace is not None
        put_back = cluster_cache.record_start(self._runs, dataclasses.replace(_namespace_ref(cluster), is_explicit=is_explicit), name)
        with contextlib.ExitStack() as refused:
            refused.callback(put_back)
            lease = self._leases.pop(name, None) or submit.reserve(cluster, made, still_wanted)
            refused.pop_all()
        start = submit.Start(cluster, made, lease, still_wanted)
        start.apply(run.spec, put_back)
        known = self._watched(name)
        tasks = tuple(TaskStatus(task.name, State.PENDING) for task in plan.tasks)
        location = status_source.on_claim(made.claim, cluster, name) if made.storage else None
        # From here on it runs: a cluster that does not answer now is waited for as later.
        known.last = RunStatus(name, BACKEND, State.PENDING, run_dir=location, strategy=plan.strategy, started=cluster.now(), tasks=tasks)
        known.answered = time.monotonic()
        known.start = None if start.try_finalize() else start
        teardown.sweep_tensorboards(cluster)

    def status(self, name: str) -> RunStatus:
        """Return the status of the run. Raises UsageError when there is none of that name."""
        return self._status(self._watched(name), name)

    def _status(self, known: _WatchedRun, name: str) -> RunStatus:
        with known.lock:
            try:
                context = self._context(known, name)
                known.last = known.watcher.status(context) or context.add_to(self._without_jobs(known, name))
            except UnreachableError as error:
                if known.last is None:
                    raise
                if known.last.state in ENDED:
                    return known.last
                away = time.monotonic() - known.answered
                if away > AWAY_TIMEOUT:
                    raise run_unreachable(name, error) from error
                reason = f"the cluster {error.lacking} for {away:.0f} s; the run goes on"
                return dataclasses.replace(known.last, reason=reason, reason_task="")
            known.answered = time.monotonic()
            return known.last

    def _context(self, known: _WatchedRun, name: str) -> RunContext:
        """Return the user who started a run, whether that is this one, and which objects of its record the run lacks."""
        lacking = known.record_watch.differences() if known.record_watch else Differences()
        if known.user is None:
            record = known.record_watch.record if known.record_watch else None  # it has just been read
            known.user = run_record.user(record or known.cluster.get("ConfigMap", run_record.name_of(name)))
        is_own = not known.user or known.cluster.user() in {"", known.user}
        notified = ledger.outcomes(notifier.entries_of(known.record_watch.record if known.record_watch else None))
        return RunContext(user=known.user, is_own=is_own, attended=False, notified=notified, differences=lacking)

    def _without_jobs(self, known: _WatchedRun, name: str) -> RunStatus:
        cluster = known.cluster
        if known.without_jobs and known.without_jobs[0] is known.watcher.snapshot:
            return known.without_jobs[1]
        status = ended_status.status(cluster, known.watcher.snapshot, self._log_directory(cluster, name), self._ended.get(name))
        if status is None and known.last is not None:  # it was there a moment ago
            raise LauncherError(
                f"nothing is left of the run {name} in {cluster.description()}: somebody has deleted all of it, or the namespace",
                "see that the namespace is there (kubectl get namespace); `launcher up` starts the run from its first step, as its volume is gone too",
            )
        if status is None:
            others = self._names(cluster, _records(cluster))
            raise UsageError(
                f"there is no run {name} in {cluster.description()}",
                f"{did_you_mean(name, others)}the runs there are {', '.join(others)}"
                if others
                else "start one with `launcher up FILE --on kubernetes`",
            )
        if status.state is State.UNKNOWN and known.record_watch is not None:  # that of one run, not of all
            status = self._of_expired(known, name, status)
        known.without_jobs = known.watcher.snapshot, status
        return status

    def _of_expired(self, known: _WatchedRun, name: str, unknown: RunStatus) -> RunStatus:
        """Return how a run whose Jobs have expired has ended, and record it, so that it is worked out once."""
        if known.expired is None:
            run = self._of_record(name)
            known.expired = expired.status(known.cluster, unknown, run) if run else unknown
            if known.expired.state is not State.UNKNOWN:
                with contextlib.suppress(LauncherError):  # without the right to, it is read again next time
                    run_record.write_end(known.cluster, known.expired)
        return known.expired

    def spec(self, name: str) -> dict[str, Any] | None:
        """Return the spec that the run was started with last, as the cluster has it."""
        return run_record.spec(self._cluster(name).get("ConfigMap", run_record.name_of(name)))

    def reconcile(self, name: str) -> list[str]:
        """Mark pods of lost nodes as failed, end a run that does not start in time, let a failed run's nodes go."""
        known = self._watched(name)
        notes: list[str] = []
        try:
            self._finalize_start(known)
            with known.lock:
                snapshot, status = known.watcher.snapshot, known.last
                is_new = status is not None and snapshot is not known.reconciled and bool(snapshot.jobs)
                if is_new:
                    known.reconciled = snapshot
            if is_new and status is not None:
                self._reconcile(known, name, snapshot, status, notes)
            if status is not None:  # last: whatever becomes of it, the run is reconciled
                notes.extend(self._notifier(name).send_due(status))
        except UnreachableError:
            known.reconciled = None  # the cluster is away; it is done when it answers again
        except LauncherError as error:  # work that cannot be done for a run is no reason to end it
            notes.append(f"{error.message}: {error.remedy}")
        return notes

    def finish(self, name: str) -> Iterator[str]:
        """Wait until people were notified of how a run has ended, as far as that is up to this process; yield what failed."""
        with contextlib.suppress(LauncherError):  # it has ended, whatever becomes of this
            yield from self._notifier(name).finish(self.status(name))

    def _notifier(self, name: str) -> notifier.Notifier:
        if name not in self._notifiers:
            spec = self.spec(name) or {}
            notify = Notify.model_validate(spec.get("notify") or {})
            has_attendant = (spec.get("kubernetes") or {}).get("attendant") is not None
            channels = functools.partial(self._channels, name, notify, has_attendant=has_attendant)
            self._notifiers[name] = notifier.Notifier(self._cluster(name), name, _NOTIFY_TIMEOUT, channels)
        return self._notifiers[name]

    def _channels(self, name: str, notify: Notify, *, has_attendant: bool) -> notifier.Channels:
        """Return the channels by which a launcher that watches notifies people: a webhook is the attendant's, where there is one at work."""
        found: dict[str, Callable[[], Channel]] = {}
        cluster, watcher, webhook = self._cluster(name), self._watched(name).watcher, notify.webhook
        if notify.command is not None:
            made = Channel("command", tuple(notify.command), self._spec_dirs.get(name) or str(Path.cwd()))
            found["command"] = lambda: made
        if webhook is not None and (not has_attendant or (watcher.attendant is not None and not watcher.is_attended())):
            found["webhook"] = lambda: notifier.of_secret(cluster, webhook)
        return found

    def _finalize_start(self, known: _WatchedRun) -> None:
        """Complete a start of ours during which the cluster went away."""
        if known.start is not None:
            try:
                known.start.finalize()
            except UnreachableError:
                return
            except LauncherError:
                known.start = None
                raise
            known.start = None

    def _reconcile(self, known: _WatchedRun, name: str, snapshot: ClusterSnapshot, status: RunStatus, notes: list[str]) -> None:
        if known.reconciler is None:
            known.spec = self.spec(name) or {}
            logs = PodLogs(known.cluster, self._log_directory(known.cluster, name))
            known.reconciler = reconcile.Reconciler(
                known.cluster, name, parse_duration(self._limit(known, "node_lost", "60s")), logs.new_lines
            )
        notes.extend(known.reconciler.reconcile(snapshot, status))
        start_timeout = parse_duration(self._limit(known, "start_timeout", "10m"))
        late = known.reconciler.late(snapshot, status, start_timeout) or (
            reconcile.evicted_too_often(snapshot) if status.state not in ENDED else ""
        )
        if late and known.watcher.is_as_seen():
            notes.append(late)
            failed = dataclasses.replace(
                status, state=State.FAILED, reason=late, reason_task="", ended=known.cluster.now(), eta=None, save_failed=None
            )
            teardown.stop(known.cluster, failed, name, PodLogs(known.cluster, self._log_directory(known.cluster, name)), now=False)
            self._forget(name)
        elif status.state in {State.SUCCEEDED, State.FAILED}:  # not where its Jobs are suspended: it may continue
            run_record.write_end(known.cluster, status)

    def _limit(self, known: _WatchedRun, limit: str, default: str) -> str:
        return str(((known.spec or {}).get("limits") or {}).get(limit, default))

    def runs(self) -> list[RunStatus]:
        """Return the status of every run of the namespace, newest first."""
        cluster = Cluster(self._cluster_ref.context, self._cluster_ref.namespace)
        known = []
        records = {one["metadata"]["labels"].get(INSTANCE): one for one in _records(cluster)}
        for name in self._names(cluster, records.values()):
            with contextlib.suppress(UsageError):  # removed meanwhile
                self._clusters[name] = cluster  # later calls are about the run that was listed, wherever one of its name was started last
                one = _WatchedRun(
                    cluster, status_source.Watcher(cluster, name, with_past_attempts=False), user=run_record.user(records.get(name))
                )
                known.append(self._status(one, name))
        return sorted(known, key=lambda status: status.started or 0, reverse=True)

    def _names(self, cluster: Cluster, records: Iterable[Object]) -> list[str]:
        found = [*cluster.listed("Job", status_source.OURS), *records]
        found += cluster.listed("PersistentVolumeClaim", status_source.OURS)
        return sorted({one["metadata"]["labels"].get(INSTANCE, "") for one in found} - {""})

    def logs(self, name: str, *, tasks: list[str], follow: bool, since: float | None = None, tail: int | None = None) -> Iterator[LogLine]:
        """Yield the lines of `tasks` (all when empty) in order of time, of earlier attempts too; `tail` counts for each task."""
        known = self._watched(name)
        names = [task.name for task in self._status(known, name).tasks]
        check_tasks(name, tasks, names)
        chosen = log_lines.LogSelection(tuple(tasks), since, tail)
        if not follow:
            return log_lines.read(known.cluster, name, self._log_directory(known.cluster, name), chosen)
        return log_lines.follow(
            known.cluster,
            name,
            self._log_directory(known.cluster, name),
            chosen,
            functools.partial(self._pods, name),
            functools.partial(self._is_over, name),
            AWAY_TIMEOUT,
            known.watcher.logs,
        )

    def _pods(self, name: str) -> list[Object]:
        return self._watched(name).watcher.pods()

    def _is_over(self, name: str) -> bool:
        """Return whether a run has ended, and all that it wrote to the last is stored, as far as that is up to this process."""
        return name not in self._stopping and self.status(name).state in ENDED

    def stacks(self, name: str, task: str) -> tuple[ProcessStacks, ...]:
        """Return the Python stacks of a task's processes at this moment. Raises LauncherError if no process can be asked for them."""
        from launcher.backend.kubernetes import port_forward  # with all of the client, which takes a second

        running = [pod for pod in self._pods(name) if pod_status.task_of(pod) == task and pod["status"].get("phase") == "Running"]
        if not running:
            raise task_stacks.no_parent_error(task)
        newest = max(running, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))["metadata"]["name"]
        with port_forward.opened(self._cluster(name), newest, PORT) as connection:
            return task_stacks.receive(task, connection)

    def stop(self, name: str, *, now: bool = False, report: Callable[[str], object] = str) -> dict[str, int]:
        """Ask every task to save and stop, or kill at once; return when all but the run's data and record is gone. Idempotent."""
        known = self._watched(name)
        status = self._status(known, name)
        reserved = name in self._leases
        with known.lock:
            # Without Jobs it has only begun to start, or nothing is left to stop.
            before = status if known.watcher.snapshot.jobs or (status.state is State.PENDING and not reserved) else None
        if not reserved:
            run_record.revoke(known.cluster, name)
        self._stopping.append(name)
        try:
            logs = PodLogs(known.cluster, self._log_directory(known.cluster, name))
            ended, removed = teardown.stop(known.cluster, before, name, logs, now=now, report=report)
        finally:
            self._stopping.remove(name)
        self._forget(name)
        if ended is not None:
            self._ended[name] = ended
        teardown.sweep_tensorboards(known.cluster)
        return removed

    def delete(self, name: str) -> None:
        """Delete the run's data and its record. Raises UsageError while the run is running."""
        if self.status(name).state not in ENDED:
            raise still_running_error(name, BACKEND)
        cluster = self._cluster(name)
        run_objects.remove(cluster, name)
        run = self._of_record(name)
        if run is not None and run.options.claim is not None:
            helper_pod.remove(cluster, run)
        else:
            claim = cluster.get("PersistentVolumeClaim", name)
            is_other = claim is not None and claim["metadata"].get("labels", {}).get(INSTANCE) != name
            if is_other and (run is None or run.own_claim):
                raise LauncherError(
                    f"the claim {name} in {cluster.description()} was not made for this run; nothing was deleted",
                    f"delete what the run has stored there yourself: its directory is {name}/",
                )
            if not is_other:
                run_objects.delete_claim(cluster, name)
        cluster.delete("ConfigMap", run_record.name_of(name))
        self._forget(name)
        cluster_cache.forget(self._runs, _namespace_ref(cluster), name)

    def rename(self, name: str, new_name: str) -> tuple[Location, ...]:
        """Rename the run's directory on its volume, and what is stored of it here."""
        cluster, run = self._cluster(name), self._of_record(name)
        run_objects.remove(cluster, name)
        if run is None:
            raise LauncherError(
                f"{name} was not started by `launcher up`: its spec is not known",
                f"delete its data: launcher down {name} --delete-data --on {BACKEND}",
            )
        lease = self._leases.get(name)
        if lease is not None:
            run_record.verify(cluster, lease)
        there = cluster.get("PersistentVolumeClaim", run.claim) if run.storage is not None else None
        stays = there is not None and not there["metadata"].get("deletionTimestamp")
        if stays:
            helper_pod.rename_directory(cluster, run, new_name)
        if lease is not None:  # nor does the cluster know of the old run any more, should nothing come of the new one
            self._leases[name] = run_record.empty(cluster, lease)
        cluster_cache.rename(self._runs, _namespace_ref(cluster), name, new_name)
        self._forget(name)
        return (status_source.on_claim(run.claim, cluster, new_name),) if stays else ()

    def fetch(self, name: str, artifact: Artifact) -> contextlib.AbstractContextManager[Stored]:
        """Open for a `with` block what the run has stored of a kind. Raises UsageError when there is nothing of it."""
        from launcher.backend.kubernetes import download  # with all of the client, which takes a second

        self.status(name)  # says so where there is no such run
        return download.opened(self._cluster(name), name, self._of_record(name), artifact)

    def tensorboard(self, name: str, *, host: str | None, port: int | None) -> TensorBoardAddress:
        """Forward a port of this machine to the run's TensorBoard in the cluster."""
        from launcher.backend.kubernetes import port_forward  # with all of the client, which takes a second

        opened = port_forward.Forward(self._cluster(name), name, host or "127.0.0.1", port)
        return TensorBoardAddress(opened.url, opened.serve)

    def _run(self, run: PlannedRun) -> Run:
        return helper_pod.on_its_claim(self._cluster(run.plan.name), manifests.run_of(Source(_spec(run.spec), run.plan, Path.cwd())))

    def _of_record(self, name: str) -> Run | None:
        """Return the run as its record tells of it."""
        stored = self.spec(name)
        if stored is None:
            return None
        spec = _spec(stored)
        plan = planner.plan(spec, "kubernetes", run_dir=TARGET_RULES["kubernetes"].run_dir(self._runs, name))
        return helper_pod.on_its_claim(self._cluster(name), Run(spec, plan, image_for(spec)))

    def _watched(self, name: str) -> _WatchedRun:
        if name not in self._watched_runs:
            cluster = self._cluster(name)
            self._watched_runs[name] = _WatchedRun(cluster, status_source.Watcher(cluster, name), inventory.ObjectWatch(cluster, name))
        return self._watched_runs[name]

    def _forget(self, name: str) -> None:
        self._watched_runs.pop(name, None)

    def _cluster(self, name: str) -> Cluster:
        """Return where a run is: where the user says, else where it was started from here, else where the kubeconfig points."""
        if name not in self._clusters:  # found once: what is kept of it may be moved or deleted meanwhile
            ref = cluster_cache.last_started(self._runs, name, self._cluster_ref.context, self._cluster_ref.namespace)
            self._clusters[name] = Cluster(ref.context, ref.namespace)
        return self._clusters[name]

    def _log_directory(self, cluster: Cluster, name: str) -> Path:
        return cluster_cache.logs(self._runs, _namespace_ref(cluster), name)


def _records(cluster: Cluster) -> list[Object]:
    return cluster.listed("ConfigMap", {**status_source.OURS, COMPONENT: run_record.COMPONENT})


def _namespace_ref(cluster: Cluster) -> cluster_cache.NamespaceRef:
    return cluster_cache.NamespaceRef(cluster.context, cluster.namespace)


def _spec(dumped: dict[str, Any]) -> ClusterSpec:
    """Return the spec that was dumped as JSON."""
    return ClusterSpec.model_validate_json(json.dumps(dumped))
