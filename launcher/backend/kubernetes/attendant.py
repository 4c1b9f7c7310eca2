"""A run's attendant: until the run has ended, it does in the cluster the work of a watching launcher that no controller does.

`python -m launcher.backend.kubernetes.attendant RUN --node-lost SECONDS --start-timeout SECONDS [--webhook FILE [--allow-http]]`, in a pod
whose account may do that. It exits with 0 when the run has ended, no work is left, and the messages to people were sent or have failed for ten
minutes, or when the run's Jobs were deleted; with 1 if the account lacks a right. If it ends earlier, by a signal or with its node, another pod
continues: all its state is in the cluster.
"""

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NoReturn

from launcher.backend.kubernetes import attendant_annotations, in_cluster, pod_status, reconcile, run_record
from launcher.backend.kubernetes.attendant_annotations import DeletedPod, LastLines
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import ForbiddenError
from launcher.backend.kubernetes.notifier import Notifier
from launcher.backend.kubernetes.object_fields import Object, has_ended, is_active, is_being_deleted
from launcher.backend.kubernetes.pod_logs import PodLogs
from launcher.backend.kubernetes.pod_status import RunSnapshot
from launcher.backend.kubernetes.status_reader import StatusReader
from launcher.errors import LauncherError
from launcher.notify.delivery import Channel
from launcher.render.kubernetes.objects import ATTENDANT
from launcher.runs.status import RunStatus, State
from trainer.exit_codes import SIGNAL_BASE

_POLL_INTERVAL = 1.0  # seconds
_NOTIFY_TIMEOUT = 600.0  # seconds for which a message to people is tried
_DELETED_TIMEOUT = 30.0  # seconds without Jobs after which a run counts as deleted
_SUCCEEDED_OR_FAILED = frozenset({State.SUCCEEDED, State.FAILED})  # not where a user has suspended its Jobs: it may continue


class Attendant:
    """Attends one run. Call `reconcile`, which may raise LauncherError, until `is_done`."""

    def __init__(self, cluster: Cluster, run: str, node_lost: float, start_timeout: float, webhook: Channel | None = None) -> None:
        self._cluster, self._run, self._start_timeout = cluster, run, start_timeout
        self._lines = LastLines()
        self._status_reader = StatusReader(cluster, run)
        self._status_reader.logs = PodLogs(cluster, sink=self._lines)
        self._reconciler = reconcile.Reconciler(cluster, run, node_lost)
        self._notifier = Notifier(cluster, run, _NOTIFY_TIMEOUT, lambda: {} if webhook is None else {webhook.kind: lambda: webhook})
        self._pods: Mapping[str, Object] = {}  # by name, as last seen
        self._deleted_pods: list[DeletedPod] = []  # those with saved last lines
        self._has_unsaved_lines = False  # some of these are not on the attendant's Job yet
        self._had_jobs = False  # the run's Jobs were seen
        self._is_restored = False  # the annotations of an earlier attendant were read
        self._start: str | None = None  # the start of the run that it attends, by the run's record
        self._recorded_end: RunStatus | None = None  # the run's end, once recorded
        self._end_notified = False  # the messages about the end were passed to the notifier
        self._missing_since: float | None = None  # when the run lost its Jobs, of time.monotonic

    def reconcile(self) -> Iterator[str]:
        """Do the work that is due; yield what was done."""
        if not self._is_restored:
            own = self._cluster.get("Job", self._name)
            with suppress(ForbiddenError):  # as in _record_end
                self._start = run_record.start_id(self._cluster.get("ConfigMap", run_record.name_of(self._run)))
            self._deleted_pods, self._recorded_end = attendant_annotations.deleted_pods(own), attendant_annotations.final(own)
            self._is_restored = True
        status = self._status_reader.status()
        self._missing_since = None if status else self._missing_since or time.monotonic()
        if status is None:
            yield from self._notifier.record_outcomes()
            return
        self._had_jobs = True
        snapshot = self._status_reader.snapshot
        status = self._checked_status(snapshot, self._recorded_end or status)
        self._save_lines(snapshot)
        if status.state in _SUCCEEDED_OR_FAILED:
            yield from self._record_end(status)
        yield from self._reconciler.reconcile(snapshot, status)
        if status.state is State.FAILED:
            yield from self._suspend_jobset(snapshot)
        yield from self._notifier.send_due(status)
        self._end_notified = self._recorded_end is not None

    def is_done(self) -> bool:
        """Return whether the run has ended, its pods are idle and people were notified, or whether its Jobs were deleted."""
        if self._notifier.busy:
            return False
        if self._missing_since is not None:
            return self._recorded_end is not None or (self._had_jobs and time.monotonic() - self._missing_since > _DELETED_TIMEOUT)
        return self._end_notified and run_is_idle(self._status_reader.snapshot)

    def _checked_status(self, snapshot: RunSnapshot, status: RunStatus) -> RunStatus:
        """Return the status of the run: failed if it has not started in time or a task was evicted too often."""
        if status.state in _SUCCEEDED_OR_FAILED:
            return status
        failure = self._reconciler.give_up_reason(snapshot, status, self._start_timeout)
        if not failure or not self._status_reader.is_unchanged():
            return status
        return status.with_end(State.FAILED, failure, self._cluster.now())

    def _record_end(self, status: RunStatus) -> Iterator[str]:
        """Record how the run has ended: on the attendant's Job, and in the run's record if a launcher has created one."""
        if self._recorded_end is None:
            with suppress(ForbiddenError):  # a service account of the user's may lack that right: the Job's annotation suffices
                run_record.write_end(self._cluster, status, self._start)
            self._annotate(attendant_annotations.status_annotation(status))  # last: an attendant that finds it repeats neither
            self._recorded_end = status
            yield f"{self._run} has {status.state}" + (f": {status.reason}" if status.reason else "")

    def _save_lines(self, snapshot: RunSnapshot) -> None:
        """Save the last lines of pods that are gone, are about to go, or are on nodes that do not answer."""
        if self._recorded_end:
            # The status of a run that has ended no longer reads them.
            leaving_pods = list(filter(is_being_deleted, snapshot.pods))
            self._status_reader.logs.new_lines(leaving_pods, tail=attendant_annotations.MAX_LINES)
        current = {pod["metadata"]["name"]: pod for pod in snapshot.pods}
        leaving = {name: pod for name, pod in current.items() if _is_leaving(pod)}
        deleted = self._lines.pop({name: pod for name, pod in self._pods.items() if name not in current} | leaving)
        self._pods = current or self._pods
        self._deleted_pods += deleted
        self._has_unsaved_lines = self._has_unsaved_lines or bool(deleted)
        if self._has_unsaved_lines:
            self._annotate(attendant_annotations.lines_annotation(self._deleted_pods))
            self._has_unsaved_lines = False

    def _suspend_jobset(self, snapshot: RunSnapshot) -> Iterator[str]:
        """Suspend the JobSet of a failed run unless the JobSet itself has failed."""
        jobset = snapshot.jobset
        if (
            jobset
            and pod_status.launcher_created_jobset(snapshot)
            and not pod_status.creates_no_more_jobs(jobset)
            and not jobset["spec"].get("suspend")
        ):
            self._cluster.patch("JobSet", jobset["metadata"]["name"], {"spec": {"suspend": True}})
            yield f"{jobset['metadata']['name']} is ended"

    @property
    def _name(self) -> str:
        return f"{self._run}-{ATTENDANT}"

    def _annotate(self, annotations: Mapping[str, str]) -> None:
        self._cluster.patch("Job", self._name, {"metadata": {"annotations": dict(annotations)}})


def _is_leaving(pod: Object) -> bool:
    """Return whether a pod was deleted, and has ended or its node does not answer: it may be gone before the attendant looks again."""
    return reconcile.deleted_since(pod) is not None or (is_being_deleted(pod) and has_ended(pod))


def run_is_idle(snapshot: RunSnapshot) -> bool:
    """Return whether no Job of a run creates pods any more, and none of its pods works or is stuck on a lost node. Pure.

    An earlier pod of the attendant on a lost node counts too: the attendant's Job completes only after that pod has ended.
    """
    return not any(map(is_active, snapshot.pods)) and all(map(pod_status.creates_no_more_pods, snapshot.jobs))


def attend(attendant: Attendant) -> int:
    """Attend a run to its end; return 0, or 1 if the account lacks a right. Other errors are logged, and it tries again."""
    last_error = ""
    while not attendant.is_done():
        try:
            for message in attendant.reconcile():
                _log(message)
            last_error = ""
        except ForbiddenError as error:
            _log(f"{error.message}: the account of this pod needs {error.rule}")
            return 1
        except LauncherError as error:
            if error.message != last_error:
                _log(f"{error.message}: {error.remedy}")
            last_error = error.message
        time.sleep(_POLL_INTERVAL)
    _log("nothing is left to do")
    return 0


def _log(message: str) -> None:
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), message, flush=True)


def _stop(number: int, _frame: object) -> NoReturn:
    sys.exit(SIGNAL_BASE + number)


def main() -> int:
    """Attend the run that the command line names."""
    parser = argparse.ArgumentParser(prog="attendant", description="Attend a run in the cluster of this pod until it has ended.")
    parser.add_argument("run")
    parser.add_argument("--node-lost", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--start-timeout", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--webhook", metavar="FILE", help="the file with the URL to which messages about the run are sent")
    parser.add_argument("--allow-http", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)  # else ignored: this is the first process of its container
    if not (in_cluster.SERVICE_ACCOUNT / "token").is_file():
        _log("no service account is mounted here: the attendant is a pod of its run, and reaches the cluster by its account")
        return 1
    cluster = Cluster()
    _log(f"attending {args.run} in {cluster.description()}")
    webhook = Channel("webhook", url_file=args.webhook, allow_http=args.allow_http) if args.webhook else None
    return attend(Attendant(cluster, args.run, args.node_lost, args.start_timeout, webhook))


if __name__ == "__main__":
    sys.exit(main())
