"""A run's output, of current and deleted pods: all of it at once, or as it comes."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.backend.kubernetes import attendant_annotations, status_reader
from launcher.backend.kubernetes.client import Cluster, Object
from launcher.backend.kubernetes.errors import UNREACHABLE_TIMEOUT, TransientError, run_unreachable
from launcher.backend.kubernetes.pod_logs import PodLogs, store_last, stored_lines
from launcher.backend.kubernetes.pod_status import task_of
from launcher.errors import LauncherError
from launcher.render.kubernetes.objects import ATTENDANT
from launcher.runs.status import LogLine

_POLL_INTERVAL = 1.0  # seconds, at the least
_PODS_A_SECOND = 32  # whose logs are requested


@dataclass(frozen=True)
class LogSelection:
    """The selected lines: of these tasks (all when empty), since a time, and at most the last `tail` of each task."""

    tasks: tuple[str, ...] = ()
    since: float | None = None
    tail: int | None = None

    def pods(self, pods: list[Object]) -> list[Object]:
        """Return the pods of these tasks."""
        return [pod for pod in pods if not self.tasks or task_of(pod) in self.tasks]

    def select(self, lines: list[LogLine]) -> list[LogLine]:
        """Return the selected lines, in order of time."""
        lines_since = sorted((line for line in lines if self.since is None or line.time >= self.since), key=lambda line: line.time)
        if self.tail is None:
            return lines_since
        remaining = dict.fromkeys({line.task for line in lines_since}, self.tail)
        last = []
        for line in reversed(lines_since):
            if remaining[line.task] > 0:
                remaining[line.task] -= 1
                last.append(line)
        return last[::-1]


def read(cluster: Cluster, run: str, directory: Path, selection: LogSelection) -> Iterator[LogLine]:
    """Yield the lines so far."""
    pods = status_reader.pods_of(cluster, run)
    _store_attendant_lines(cluster, run, directory)
    yield from selection.select(_lines_so_far(pods, _reader(cluster, directory, selection), directory, selection))


def follow(
    cluster: Cluster,
    run: str,
    directory: Path,
    selection: LogSelection,
    list_pods: Callable[[], list[Object]],
    run_has_ended: Callable[[], bool],
    sink: PodLogs | None = None,
) -> Iterator[LogLine]:
    """Yield the lines so far and new ones until `run_has_ended`.

    If the cluster does not answer, retry for UNREACHABLE_TIMEOUT. `list_pods` returns the current pods of the run's tasks. `sink` is
    another reader of the run: it gets these lines, and does not request them again.
    """
    reader = _reader(cluster, directory, selection, sink)
    _store_attendant_lines(cluster, run, directory)
    first = True
    answered = time.monotonic()
    while True:
        try:
            # Before reading, so that lines written until the end are still read.
            over = run_has_ended()
            pods = list_pods()
        except TransientError as error:
            if time.monotonic() - answered > UNREACHABLE_TIMEOUT:
                raise run_unreachable(run, error) from error
            time.sleep(_POLL_INTERVAL)
            continue
        answered = time.monotonic()
        if first:
            yield from selection.select(_lines_so_far(pods, reader, directory, selection))
        else:
            yield from reader.new_lines(selection.pods(pods))  # no selection by time: the nodes' clocks may differ from this machine's
        first = False
        reader.stream(selection.pods(pods))
        if over:
            yield from reader.stored_since(directory, pods)
            return
        time.sleep(max(_POLL_INTERVAL, len(pods) / _PODS_A_SECOND))


def _store_attendant_lines(cluster: Cluster, run: str, directory: Path) -> None:
    """Copy the deleted pods' last lines from the attendant's Job to this machine; do nothing if the Job cannot be read."""
    with contextlib.suppress(LauncherError):
        for pod in attendant_annotations.deleted_pods(cluster.get("Job", f"{run}-{ATTENDANT}")):
            store_last(directory, pod.task, pod.name, pod.lines)


def _reader(cluster: Cluster, directory: Path, selection: LogSelection, sink: PodLogs | None = None) -> PodLogs:
    # With a tail lines are skipped, so they are neither stored nor passed on.
    return PodLogs(cluster, directory, sink) if selection.tail is None else PodLogs(cluster)


def _lines_so_far(pods: list[Object], reader: PodLogs, directory: Path, selection: LogSelection) -> list[LogLine]:
    read = reader.new_lines(selection.pods(pods), tail=selection.tail)
    unread = [pod for pod in pods if reader.is_unread(pod)]
    for pod in unread:
        reader.skip_stored(pod, directory)
    readable = [pod for pod in pods if pod not in unread]
    discarded = [line for pod in selection.pods(readable) for line in reader.discarded(pod, directory)] if selection.tail is None else []
    return [*stored_lines(directory, list(selection.tasks), except_pods=readable), *discarded, *read]
