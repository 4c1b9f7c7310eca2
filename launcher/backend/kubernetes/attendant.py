"""A run's attendant: until the run has ended, it does in the cluster the work of a watching launcher that no controller does.

`python -m launcher.backend.kubernetes.attendant RUN --node-lost SECONDS --start-timeout SECONDS [--webhook FILE [--allow-http]]`, in a pod
whose account may do that. It ends with 0 when the run has ended, nothing of it is left to do, and its messages to people were sent, or could not be
for ten minutes. If it ends before, by a signal or with its node, it continues in another pod: all that it knows is in the cluster.
"""

import argparse
import dataclasses
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NoReturn

from launcher.backend.kubernetes import attendant_notes, in_cluster, pod_status, reconcile, run_record
from launcher.backend.kubernetes.attendant_notes import DeletedPod, LastLines
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import ForbiddenError
from launcher.backend.kubernetes.notifier import Notifier
from launcher.backend.kubernetes.pod_logs import PodLogs
from launcher.backend.kubernetes.pod_status import ClusterSnapshot, Object
from launcher.backend.kubernetes.status_source import Watcher
from launcher.errors import LauncherError
from launcher.notify.outbox import Channel
from launcher.render.kubernetes.objects import ATTENDANT
from launcher.runs.status import RunStatus, State
from trainer.exit_codes import SIGNAL_BASE

_POLL_INTERVAL = 1.0  # seconds
_NOTIFY_TIMEOUT = 600.0  # seconds for which a message to people is tried
_DELETED_AFTER = 30.0  # seconds without any of its Jobs, after which a run is taken for deleted
_OVER = frozenset({State.SUCCEEDED, State.FAILED})  # not where a user has suspended its Jobs: it may continue


class Attendant:
    """Attends one run. `reconcile` is to be called until `is_done`; it raises LauncherError."""

    def __init__(self, cluster: Cluster, run: str, node_lost: float, start_timeout: float, webhook: Channel | None = None) -> None:
        self._cluster, self._run, self._start_timeout = cluster, run, start_timeout
        self._lines = LastLines()
        self._watcher = Watcher(cluster, run)
        self._watcher.logs = PodLogs(cluster, sink=self._lines)
        self._reconciler = reconcile.Reconciler(cluster, run, node_lost)
        self._notifier = Notifier(cluster, run, _NOTIFY_TIMEOUT, lambda: {} if webhook is None else {webhook.kind: lambda: webhook})
        self._pods: Mapping[str, Object] = {}  # by their names, as they were seen last
        self._deleted_pods: list[DeletedPod] = []  # whose last lines are saved
        self._has_unsaved_lines = False  # not all of these are on the own Job yet
        self._had_jobs = False  # its Jobs were seen
        self._is_restored = False  # the notes of the attendant before it were read
        self._noted: RunStatus | None = None  # how the run has ended, once that is noted
        self._end_notified = False  # whether the messages about that were handed over
        self._missing_since: float | None = None  # since when the run has no Jobs, of time.monotonic

    def reconcile(self) -> Iterator[str]:
        """Do what is to be done now; yield what was done."""
        if not self._is_restored:
            own = self._cluster.get("Job", self._name)
            self._deleted_pods, self._noted, self._is_restored = attendant_notes.deleted_pods(own), attendant_notes.final(own), True
        status = self._watcher.status()
        self._missing_since = None if status else self._missing_since or time.monotonic()
        if status is None:
            yield from self._notifier.record_outcomes()
            return
        self._had_jobs = True
        snapshot = self._watcher.snapshot
        status = self._checked_status(snapshot, self._noted or status)
        self._save_lines(snapshot)
        if status.state in _OVER:
            yield from self._note(status)
        yield from self._reconciler.reconcile(snapshot, status)
        if status.state is State.FAILED:
            yield from self._suspend_set(snapshot)
        yield from self._notifier.send_due(status)
        self._end_notified = self._noted is not None

    def is_done(self) -> bool:
        """Return whether the run has ended, none of its pods is at work and people were notified, or its Jobs are gone that were there."""
        if self._notifier.busy:
            return False
        if self._missing_since is not None:
            return self._noted is not None or (self._had_jobs and time.monotonic() - self._missing_since > _DELETED_AFTER)
        return self._end_notified and is_idle(self._watcher.snapshot)

    def _checked_status(self, snapshot: ClusterSnapshot, status: RunStatus) -> RunStatus:
        """Return the status of the run: failed if it is to be ended because it has not started in time, or a task was evicted too often."""
        if status.state in _OVER:
            return status
        late = self._reconciler.late(snapshot, status, self._start_timeout) or reconcile.evicted_too_often(snapshot)
        if not late or not self._watcher.is_as_seen():
            return status
        return dataclasses.replace(
            status, state=State.FAILED, reason=late, reason_task="", ended=self._cluster.now(), eta=None, save_failed=None
        )

    def _note(self, status: RunStatus) -> Iterator[str]:
        """Note how the run has ended, on the own Job and in the record that a launcher has made, where one has."""
        if self._noted is None:
            with suppress(ForbiddenError):  # an account of the user's may lack that right: the own Job says the same
                run_record.write_end(self._cluster, status)
            self._annotate(attendant_notes.of_status(status))  # last: an attendant that finds it does neither again
            self._noted = status
            yield f"{self._run} has {status.state}" + (f": {status.reason}" if status.reason else "")

    def _save_lines(self, snapshot: ClusterSnapshot) -> None:
        """Save the last lines of pods that are gone, will be in a moment, or are on nodes that do not answer."""
        if self._noted:
            # The status of a run that has ended reads them no more.
            self._watcher.logs.new_lines(
                [pod for pod in snapshot.pods if pod["metadata"].get("deletionTimestamp")], tail=attendant_notes.MAX_LINES
            )
        there = {pod["metadata"]["name"]: pod for pod in snapshot.pods}
        going = {name: pod for name, pod in there.items() if reconcile.deleted_since(pod) is not None or _is_removed(pod)}
        found = self._lines.pop({name: pod for name, pod in self._pods.items() if name not in there} | going)
        self._pods = there or self._pods
        self._deleted_pods += found
        self._has_unsaved_lines = self._has_unsaved_lines or bool(found)
        if self._has_unsaved_lines:
            self._annotate(attendant_notes.of_lines(self._deleted_pods))
            self._has_unsaved_lines = False

    def _suspend_set(self, snapshot: ClusterSnapshot) -> Iterator[str]:
        """Suspend the JobSet of a run that is to be ended and has not failed by itself."""
        jobset = snapshot.jobset
        if jobset and pod_status.is_own_set(snapshot) and not pod_status.is_over(jobset) and not jobset["spec"].get("suspend"):
            self._cluster.patch("JobSet", jobset["metadata"]["name"], {"spec": {"suspend": True}})
            yield f"{jobset['metadata']['name']} is ended"

    @property
    def _name(self) -> str:
        return f"{self._run}-{ATTENDANT}"

    def _annotate(self, annotations: Mapping[str, str]) -> None:
        self._cluster.patch("Job", self._name, {"metadata": {"annotations": dict(annotations)}})


def _is_removed(pod: Object) -> bool:
    """Return whether a pod was deleted and has ended: nothing holds it any more, and the attendant may not see that it is gone."""
    return bool(pod["metadata"].get("deletionTimestamp")) and pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def is_idle(snapshot: ClusterSnapshot) -> bool:
    """Return whether no Job of a run makes pods any more, and none of its pods is at work or held by a lost node. Pure.

    An attendant's own pod on a lost node is among these: its Job is not complete before that has ended.
    """
    at_work = any(pod.get("status", {}).get("phase") in {"Pending", "Running"} for pod in snapshot.pods)
    return not at_work and all(map(pod_status.is_idle, snapshot.jobs))


def attend(attendant: Attendant) -> int:
    """Attend a run to its end; return an exit code. A cluster that does not answer is asked again."""
    last_error = ""
    while not attendant.is_done():
        try:
            for message in attendant.reconcile():
                _say(message)
            last_error = ""
        except ForbiddenError as error:
            _say(f"{error.message}: the account of this pod needs {error.rule}")
            return 1
        except LauncherError as error:
            if error.message != last_error:
                _say(f"{error.message}: {error.remedy}")
            last_error = error.message
        time.sleep(_POLL_INTERVAL)
    _say("nothing is left to do")
    return 0


def _say(message: str) -> None:
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), message, flush=True)


def _stop(number: int, _frame: object) -> NoReturn:
    sys.exit(SIGNAL_BASE + number)


def main() -> int:
    """Attend the run that the command line names."""
    parser = argparse.ArgumentParser(prog="attendant", description="Attend a run in the cluster of this pod until it has ended.")
    parser.add_argument("run")
    parser.add_argument("--node-lost", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--start-timeout", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--webhook", metavar="FILE", help="the file with the URL to which people are told how the run goes")
    parser.add_argument("--allow-http", action="store_true")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)  # the first process of a container ignores it else
    if not (in_cluster.ACCOUNT / "token").is_file():
        _say("no service account is mounted here: the attendant is a pod of its run, and reaches the cluster by its account")
        return 1
    cluster = Cluster()
    _say(f"attending {given.run} in {cluster.description()}")
    webhook = Channel("webhook", url_file=given.webhook, allow_http=given.allow_http) if given.webhook else None
    return attend(Attendant(cluster, given.run, given.node_lost, given.start_timeout, webhook))


if __name__ == "__main__":
    sys.exit(main())
