"""What the tasks of a run tell of themselves in their output: progress, restarts inside their pods, whom they wait for. Pure."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from launcher.runs.progress import Pace, Progress, number, whole
from launcher.runs.reasons import Start, said, waiting
from launcher.runs.status import LogLine, Restart, RunStatus, State, TaskStatus
from trainer.events import Event, parse


@dataclass
class TaskEvents:
    """What one task has told."""

    pace: Pace = field(default_factory=Pace)
    restarts: list[Restart] = field(default_factory=list)  # of its process, in its pod
    left: int | None = None  # restarts of its process that its pod may still make
    start: Start = field(default_factory=Start)
    done: bool = False  # its work is complete
    state: tuple[State, str] | None = None  # of the process in the pod that runs, and why

    def tell(self, event: Event, *, own: bool) -> None:
        """Take in an event about the task; `own` when it wrote it itself."""
        kind = event["event"]
        if kind == "progress":
            self.pace = Pace.of(event)
        if not own:
            return
        self.done = kind == "done"
        if self.start.waits(event):
            self.state = (State.PENDING, waiting(event))
        elif kind == "restarting":
            cause = said(event)
            self.restarts.append(Restart(number(event, "time") or 0.0, 0, whole(event, "exit_code"), cause))
            self.state, self.left = (State.RESTARTING, cause), whole(event, "left")
        elif kind == "recovered":
            self.left = whole(event, "left")
        elif kind in {"started", "ready", "restored", "progress"}:
            self.state = None
            if kind == "started" and whole(event, "attempt") == 1:  # in another pod
                self.left = None

    def onto(self, task: TaskStatus) -> TaskStatus:
        """Return the status of a task, known from its pods, with what it told."""
        both = sorted([*task.restarts, *self.restarts], key=lambda restart: restart.time)
        restarts = tuple(dataclasses.replace(restart, attempt=attempt) for attempt, restart in enumerate(both, 1))
        left = min((one for one in (task.restarts_left, self.left) if one is not None), default=None)
        told: dict[str, Any] = {"restarts": restarts, "restarts_left": left, **vars(self.pace)}
        if self.state and task.state is State.RUNNING and not task.reason:
            told |= {"state": self.state[0], "reason": self.state[1]}
        return dataclasses.replace(task, **told)


class RunEvents:
    """What all tasks of a run have told so far."""

    def __init__(self, leader: str) -> None:
        self._leader = leader
        self._tasks: dict[str, TaskEvents] = {}
        self.progress = Progress()

    def leads(self, task: str) -> bool:
        """Return whether the run is as far as this task says."""
        return task == self._leader

    def done(self, task: str) -> bool:
        """Return whether a task has said last that its work is complete."""
        return task in self._tasks and self._tasks[task].done

    def take(self, lines: Iterable[LogLine]) -> None:
        """Take in lines of output."""
        for line in lines:
            event = parse(line.text)
            if event is None:
                continue
            about = event.get("task")
            about = about if isinstance(about, str) else line.task
            own = about == line.task
            self._tasks.setdefault(about, TaskEvents()).tell(event, own=own)
            self.progress.apply(event, leads=own and line.task == self._leader)

    def onto(self, status: RunStatus, *, ended: bool) -> RunStatus:
        """Return the status of a run, known from its objects, with what its tasks told."""
        tasks = tuple(self._tasks.get(task.name, TaskEvents()).onto(task) for task in status.tasks)
        fields: dict[str, Any] = self.progress.fields(ended=ended)
        return dataclasses.replace(status, tasks=tasks, **fields)
