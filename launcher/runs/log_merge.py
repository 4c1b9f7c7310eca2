"""The logs of several tasks as one stream in order of time."""

import heapq
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from launcher.runs import log_files
from launcher.runs.status import LogLine

_POLL_INTERVAL = 0.2


def merged(
    files: Mapping[str, Path],
    *,
    follow: bool = False,
    since: float | None = None,
    tail: int | None = None,
    ended: Callable[[], bool] = lambda: True,
) -> Iterator[LogLine]:
    """Yield the lines of `files` (task name -> log file) in order of time.

    `since` (seconds since the epoch) leaves out older lines; `tail` leaves out all but the last lines of each task. With `follow` it yields new
    lines until `ended` returns True and all lines were read.
    """
    offsets = {task: _start(path, since, tail) for task, path in files.items()}

    def new_lines(task: str) -> Iterator[LogLine]:
        for after, line in log_files.read(files[task], offsets[task]):
            offsets[task] = after
            yield line

    while True:
        # Checked before reading, so that the reading that follows gets everything up to the end.
        is_last_read = not follow or ended()
        any_line = False
        for line in heapq.merge(*map(new_lines, files), key=lambda line: line.time):
            any_line = True
            yield line
        if is_last_read:
            return
        if not any_line:
            time.sleep(_POLL_INTERVAL)


def _start(path: Path, since: float | None, tail: int | None) -> int:
    starts = [0]
    if since is not None:
        starts.append(log_files.since_offset(path, since))
    if tail is not None:
        starts.append(log_files.tail_offset(path, tail))
    return max(starts)
