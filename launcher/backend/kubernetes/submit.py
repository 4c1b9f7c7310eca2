"""Starts a run in the cluster atomically: one launcher at a time, all objects or none, leaving other objects alone."""

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

from launcher.backend.kubernetes import pod_status, run_objects, run_record, status_reader
from launcher.backend.kubernetes.client import Cluster, Object, http_status
from launcher.backend.kubernetes.errors import TransientError
from launcher.backend.kubernetes.run_context import JOB_KINDS, ObjectRef
from launcher.errors import LauncherError, UsageError
from launcher.render.kubernetes.objects import Run
from launcher.runs.status import ENDED, RunStatus, State

# Seconds of retries if the cluster stops answering during a start, before the start fails.
_RETRY_TIMEOUT = 60.0
_POLL_INTERVAL = 0.5
# Tries to acquire the lease, if other launchers change the record at the same time.
_TRIES = 5
_CLAIM = "PersistentVolumeClaim"
_Answer = TypeVar("_Answer")


def never_cancelled() -> bool:
    """Return False: for a start that cannot be interrupted."""
    return False


def reserve(cluster: Cluster, run: Run, is_cancelled: Callable[[], bool] = never_cancelled) -> run_record.StartLease:
    """Acquire the lease that keeps every other launcher from starting the run; change nothing else.

    Raises UsageError if the run is active, or if another launcher is starting it: of two, one gets the lease.
    """
    for _ in range(_TRIES):
        # First: the state checked below must still hold when the lease is taken.
        record = cluster.get("ConfigMap", run_record.name_of(run.name))
        run_record.refuse_if_starting(cluster, run.name, record)
        ended = _ended(cluster, run.name, record)
        run_objects.refuse_claim_of_others(cluster, run)
        lease = run_record.new_lease(cluster, run, record, ended)
        if _retry(functools.partial(run_record.acquire, cluster, run, lease), is_cancelled):
            return lease
    raise UsageError(f"another `launcher up` is starting {run.name} in {cluster.description()}", "see `launcher status`")


def _ended(cluster: Cluster, run: str, record: Object | None) -> RunStatus | None:
    """Return how the run has ended, from its Jobs, which a start deletes; None without Jobs, if the end is recorded, or if the run was only suspended.

    Raises UsageError if the Jobs are active, or wait for a node or a queue.
    """
    snapshot = status_reader.snapshot_of(cluster, run)
    if not snapshot.jobs and snapshot.jobset is not None and not pod_status.creates_no_more_jobs(snapshot.jobset):
        name = f"jobset/{snapshot.jobset['metadata']['name']}"
        raise UsageError(
            f"{run} is already waiting in {cluster.description()}: {name}", f"stop it first: launcher down {run} --on kubernetes"
        )
    if snapshot.jobs and pod_status.status(snapshot, cluster.now()).state not in ENDED:
        names = ", ".join(job["metadata"]["name"] for job in snapshot.jobs)
        raise UsageError(f"{run} runs already in {cluster.description()}: {names}", f"stop it first: launcher down {run} --on kubernetes")
    status = status_reader.StatusReader(cluster, run).status() if snapshot.jobs and run_record.final(record) is None else None
    return status if status is not None and status.state in {State.SUCCEEDED, State.FAILED} else None


class Start:
    """One start of a run, by the launcher that holds its lease. Calls raise LauncherError, LeaseLostError if the run was stopped meanwhile."""

    def __init__(self, cluster: Cluster, run: Run, lease: run_record.StartLease, is_cancelled: Callable[[], bool]) -> None:
        """Start nothing yet. The start is cancelled once `is_cancelled` returns True."""
        self._cluster, self._run, self._lease, self._is_cancelled = cluster, run, lease, is_cancelled
        self._record: Object = {}
        self._created: list[ObjectRef] = []
        self._has_sent = False  # a request to create an object was sent; even without an answer it may exist
        self._unused: list[ObjectRef] = []  # objects of earlier starts
        self._claim: ObjectRef | None = None  # once it is created
        self._claim_is_new = False

    def apply(self, spec: dict[str, Any], on_undone: Callable[[], None]) -> None:
        """Apply the run's objects.

        If one is refused, or the start is cancelled, delete the created objects again, and call `on_undone` once none is left.
        """
        try:
            _retry(lambda: self._begin(spec), self._is_cancelled)
            for manifest in run_objects.objects(self._run, self._cluster):
                self._create(manifest)
            _retry(self._write_objects, self._is_cancelled)
            _retry(self._find_unused, self._is_cancelled)
        except BaseException as error:
            remaining = self._undo(on_undone)
            if remaining and isinstance(error, LauncherError):
                error.remedy += f"; some objects could not be removed again ({remaining}): launcher down {self._run.name} --on kubernetes"
            raise

    def complete(self) -> None:
        """Release the lease, and delete objects of earlier starts that this one does not use."""
        try:
            run_record.release(self._cluster, self._lease)
        except run_record.LeaseLostError:
            self._undo(lambda: None)
            raise
        for ref in self._unused:
            try:
                run_objects.delete(self._cluster, ref)
            except TransientError:
                raise
            except LauncherError:  # for example without that right: the object is left behind
                continue

    def try_complete(self) -> bool:
        """Complete it; return False if the cluster does not answer for a while."""
        try:
            _retry(self.complete, self._is_cancelled)
        except TransientError:
            return False
        return True

    def _begin(self, spec: dict[str, Any]) -> None:
        self._record = run_record.write(self._cluster, self._run, self._lease, spec)
        run_objects.delete_old_jobs(self._cluster, self._run.name, self._check_not_cancelled)
        if self._run.has_own_claim:
            self._claim_is_new = run_objects.is_new_claim(self._cluster, self._run, self._check_not_cancelled)

    def _check_not_cancelled(self) -> None:
        """Raise LauncherError if the start was cancelled."""
        if self._is_cancelled():
            raise LauncherError(
                f"{self._run.name} in {self._cluster.description()} was not started: its start was interrupted",
                "start it with `launcher up`",
            )

    def _create(self, manifest: Object) -> None:
        """Create or apply one object; retry if the cluster does not answer."""
        kind, name = str(manifest["kind"]), str(manifest["metadata"]["name"])
        if kind != _CLAIM:
            manifest["metadata"]["ownerReferences"] = [run_record.owner(self._record)]
        unanswered: list[TransientError] = []
        self._has_sent = True

        def create_or_apply() -> Object:
            self._check_not_cancelled()
            # Before each object: a stop first revokes the lease, and then deletes the objects.
            run_record.verify(self._cluster, self._lease)
            try:
                return self._cluster.create(manifest) if kind in JOB_KINDS else self._cluster.apply(manifest)
            except TransientError as error:
                unanswered.append(error)
                raise
            except LauncherError as error:
                if kind not in JOB_KINDS or http_status(error) != 409:
                    raise
                run_record.verify(self._cluster, self._lease)
                existing = self._cluster.get(kind, name) if unanswered else None
                if existing is None:
                    raise
                return existing  # created by an earlier try that was not answered: no other launcher may create it while this one holds the lease

        created = ObjectRef(kind, name, str(_retry(create_or_apply, self._is_cancelled)["metadata"]["uid"]))
        if kind != _CLAIM:
            self._created.append(created)
        elif self._claim_is_new:  # an older claim has data
            self._claim = created

    def _write_objects(self) -> None:
        """Record the created objects and the uid of the claim, which tells it from a later claim of its name."""
        claim = self._cluster.get(_CLAIM, self._run.claim) if self._run.storage else None
        uid = None if claim is None else str(claim["metadata"]["uid"])
        run_record.write_objects(self._cluster, self._lease, uid, self._created)

    def _find_unused(self) -> None:
        used = {(ref.kind, ref.name) for ref in self._created}
        self._unused = [ref for ref in run_objects.existing_objects(self._cluster, self._run.name) if (ref.kind, ref.name) not in used]

    def _undo(self, on_undone: Callable[[], None]) -> str:
        """Delete the objects that this start has created; return the errors of those that remain, empty without any.

        If another launcher has taken the run over, delete only Jobs: that launcher uses all other objects now. If the run was stopped, its record
        and data stay.
        """
        failed: list[str] = []
        try:
            is_taken_over, is_held = run_record.is_taken_over(self._cluster, self._lease), run_record.is_held(self._cluster, self._lease)
        except LauncherError as error:  # the caller reports the first error
            return error.message
        remove = functools.partial(run_objects.remove, self._cluster, self._run.name)
        steps: list[Callable[[], None]] = []
        if is_taken_over:
            steps += [functools.partial(run_objects.delete, self._cluster, ref) for ref in self._created if ref.kind in JOB_KINDS]
        elif not is_held:
            steps.append(functools.partial(remove, self._created))
        else:  # no other launcher creates objects of the run: remove all, including those of unanswered requests
            steps += [remove] if self._has_sent else []
            steps += [functools.partial(run_objects.delete, self._cluster, self._claim)] if self._claim else []
            steps += [lambda: run_record.undo(self._cluster, self._lease), on_undone]
        for step in steps:
            try:
                step()
            except TransientError as error:
                return "; ".join([*failed, error.message])
            except LauncherError as error:
                failed.append(error.message)
        return "; ".join(failed)


def _retry(do: Callable[[], _Answer], is_cancelled: Callable[[], bool] = never_cancelled) -> _Answer:
    """Return the result of a call; retry for a while if the cluster does not answer and the start is not cancelled. Raises LauncherError."""
    deadline = time.monotonic() + _RETRY_TIMEOUT
    while True:
        try:
            return do()
        except TransientError:
            if time.monotonic() >= deadline or is_cancelled():
                raise
        time.sleep(_POLL_INTERVAL)
