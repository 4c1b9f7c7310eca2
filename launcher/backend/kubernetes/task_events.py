"""Events that the tasks of a run write to their output: progress, restarts inside their pods, waits for peers. Pure."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from launcher.runs.progress import RunProgress
from launcher.runs.status import LogLine, State, TaskStatus
from launcher.runs.task_tracker import TaskTracker
from trainer.events import parse


class TaskEvents:
    """The events of all tasks of a run so far."""

    def __init__(self, leader: str) -> None:
        self._leader = leader
        self._tasks: dict[str, TaskTracker] = {}
        self.progress = RunProgress()

    def is_leader(self, task: str) -> bool:
        """Return whether the progress of this task is the run's."""
        return task == self._leader

    def is_done(self, task: str) -> bool:
        """Return whether a task has reported that its work is complete."""
        return task in self._tasks and self._tasks[task].done

    def apply(self, lines: Iterable[LogLine]) -> None:
        """Apply the events in lines of output."""
        for line in lines:
            event = parse(line.text)
            if event is None:
                continue
            subject = event.get("task")
            subject = subject if isinstance(subject, str) else line.task
            self_reported = subject == line.task
            self._tasks.setdefault(subject, TaskTracker(subject)).apply(event, self_reported=self_reported)
            self.progress.apply(event, is_leader=self_reported and line.task == self._leader)

    def statuses(self, tasks: Iterable[TaskStatus]) -> tuple[TaskStatus, ...]:
        """Return these statuses, which come from pods, with the facts of the tasks' events added."""
        return tuple(_with_events(task, self._tasks[task.name]) if task.name in self._tasks else task for task in tasks)


def _with_events(task: TaskStatus, tracker: TaskTracker) -> TaskStatus:
    """Return a status, which comes from pods, with the facts of the task's events."""
    both = sorted([*task.restarts, *tracker.restarts], key=lambda attempt: attempt.time)
    forgotten = tracker.restarts[0].attempt - 1 if tracker.restarts else 0  # the tracker remembers the newest
    restarts = tuple(dataclasses.replace(attempt, attempt=number) for number, attempt in enumerate(both, 1 + forgotten))
    left = min((one for one in (task.restarts_left, tracker.restarts_left) if one is not None), default=None)
    found: dict[str, Any] = {"restarts": restarts, "restarts_left": left, **vars(tracker.progress)}
    if tracker.reported and task.state is State.RUNNING and not task.reason:
        found |= dict(zip(("state", "reason"), tracker.reported, strict=True))
    return tracker.stall.apply_to(dataclasses.replace(task, **found))
