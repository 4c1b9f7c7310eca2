"""How tasks hear that their supervisor is gone, however that happened, in the order in which they are to stop.

Each stop group of tasks reads from a pipe of its own, whose write end the supervisor holds, and so do the tasks of the group
before. So when the supervisor is killed, those that save stop first, and the servers they save from after them.
"""

import os
from collections.abc import Sequence


class Lifelines:
    """A pipe for each stop group, see stop_order.py. They stay open as long as this process lives."""

    def __init__(self, stop_groups: Sequence[frozenset[str]]) -> None:
        self._stop_groups = tuple(stop_groups)
        self._pipes = [os.pipe() for _ in stop_groups]

    def of(self, task: str) -> int:
        """Return the read end whose closing tells the task to stop."""
        return self._pipes[self._group_index(task)][0]

    def inherited_by(self, task: str) -> tuple[int, ...]:
        """Return the write ends that the task is to hold as well: those of the group after its own."""
        return tuple(writing for _, writing in self._pipes[self._group_index(task) + 1 :][:1])

    def _group_index(self, task: str) -> int:
        return next(index for index, group in enumerate(self._stop_groups) if task in group)
