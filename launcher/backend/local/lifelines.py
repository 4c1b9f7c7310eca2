"""Pipes by which tasks notice that their supervisor has died, in the order in which they are to stop.

Each stop group of tasks reads from a pipe of its own. The supervisor and the tasks of the previous group hold its write end. So if the
supervisor is killed, the tasks that save stop first, and the servers, whose variables they save, after them.
"""

import os
from collections.abc import Sequence


class Lifelines:
    """A pipe for each stop group, see stop_order.py. They stay open as long as this process lives."""

    def __init__(self, stop_groups: Sequence[frozenset[str]]) -> None:
        self._stop_groups = tuple(stop_groups)
        self._pipes = [os.pipe() for _ in stop_groups]

    def read_end(self, task: str) -> int:
        """Return the read end of the task's pipe: the task stops when the write end is closed."""
        return self._pipes[self._group_index(task)][0]

    def inherited_by(self, task: str) -> tuple[int, ...]:
        """Return the write end of the next group's pipe, which the task inherits; empty for the last group."""
        return tuple(writing for _, writing in self._pipes[self._group_index(task) + 1 :][:1])

    def _group_index(self, task: str) -> int:
        return next(index for index, group in enumerate(self._stop_groups) if task in group)
