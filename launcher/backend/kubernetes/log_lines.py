"""A run's output, of pods that are there and of those that are gone: all of it at once, or as it comes."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.backend.kubernetes import attendant_notes, status_source
from launcher.backend.kubernetes.client import Cluster, Object
from launcher.backend.kubernetes.errors import UnreachableError, run_unreachable
from launcher.backend.kubernetes.pod_logs import PodLogs, store_last, stored_lines
from launcher.backend.kubernetes.pod_status import task_of
from launcher.errors import LauncherError
from launcher.render.kubernetes.objects import ATTENDANT
from launcher.runs.status import LogLine

_POLL_INTERVAL = 1.0  # seconds, at the least
_PODS_A_SECOND = 32  # whose output is asked for


@dataclass(frozen=True)
class LogSelection:
    """Which lines are wanted: of these tasks (all when empty), since a time, and at most the last `tail` of each task."""

    tasks: tuple[str, ...] = ()
    since: float | None = None
    tail: int | None = None

    def pods(self, pods: list[Object]) -> list[Object]:
        """Return the pods of these tasks."""
        return [pod for pod in pods if not self.tasks or task_of(pod) in self.tasks]

    def select(self, lines: list[LogLine]) -> list[LogLine]:
        """Return the lines that are wanted, in order of time."""
        wanted = sorted((line for line in lines if self.since is None or line.time >= self.since), key=lambda line: line.time)
        if self.tail is None:
            return wanted
        left = dict.fromkeys({line.task for line in wanted}, self.tail)
        last = []
        for line in reversed(wanted):
            if left[line.task] > 0:
                left[line.task] -= 1
                last.append(line)
        return last[::-1]


def read(cluster: Cluster, run: str, directory: Path, chosen: LogSelection) -> Iterator[LogLine]:
    """Yield the lines there are."""
    pods = status_source.pods_of(cluster, run)
    _store_attendant_lines(cluster, run, directory)
    yield from chosen.select(_all(pods, _reader(cluster, directory, chosen), directory, chosen))


def follow(
    cluster: Cluster,
    run: str,
    directory: Path,
    chosen: LogSelection,
    there: Callable[[], list[Object]],
    ended: Callable[[], bool],
    away_timeout: float,
    sink: PodLogs | None = None,
) -> Iterator[LogLine]:
    """Yield the lines there are and those to come until the run has `ended`; a cluster that is away is waited for `away_timeout` seconds.

    `there` gives the pods of its tasks as they are now. `sink` gets what is read, and goes on after it.
    """
    reader = _reader(cluster, directory, chosen, sink)
    _store_attendant_lines(cluster, run, directory)
    first = True
    answered = time.monotonic()
    while True:
        try:
            # Asked before reading: what was written until the end is read after it.
            over = ended()
            pods = there()
        except UnreachableError as error:
            if time.monotonic() - answered > away_timeout:
                raise run_unreachable(run, error) from error
            time.sleep(_POLL_INTERVAL)
            continue
        answered = time.monotonic()
        if first:
            yield from chosen.select(_all(pods, reader, directory, chosen))
        else:
            yield from reader.new_lines(chosen.pods(pods))  # new lines: the nodes' clocks need not agree with ours
        first = False
        reader.stream(chosen.pods(pods))
        if over:
            yield from reader.left(directory, pods)
            return
        time.sleep(max(_POLL_INTERVAL, len(pods) / _PODS_A_SECOND))


def _store_attendant_lines(cluster: Cluster, run: str, directory: Path) -> None:
    """Store here what the run's attendant has kept of pods that are gone; nothing where that cannot be asked for."""
    with contextlib.suppress(LauncherError):
        for pod in attendant_notes.deleted_pods(cluster.get("Job", f"{run}-{ATTENDANT}")):
            store_last(directory, pod.task, pod.name, pod.lines)


def _reader(cluster: Cluster, directory: Path, chosen: LogSelection, sink: PodLogs | None = None) -> PodLogs:
    return PodLogs(cluster, directory, sink) if chosen.tail is None else PodLogs(cluster)  # what is stored or passed on has no gaps


def _all(pods: list[Object], reader: PodLogs, directory: Path, chosen: LogSelection) -> list[LogLine]:
    read = reader.new_lines(chosen.pods(pods), tail=chosen.tail)
    unread = [pod for pod in pods if reader.unread(pod)]
    for pod in unread:
        reader.skip_stored(pod, directory)
    there = [pod for pod in pods if pod not in unread]
    discarded = [line for pod in chosen.pods(there) for line in reader.discarded(pod, directory)] if chosen.tail is None else []
    return [*stored_lines(directory, there, list(chosen.tasks)), *discarded, *read]
