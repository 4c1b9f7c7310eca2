"""Finds tasks that make no progress, by their parents' events, and those among them that hold up a run. Pure."""

from dataclasses import dataclass, replace

from launcher import timestamps
from launcher.runs.progress import number, text
from launcher.runs.status import ENDED, RunStatus, State, TaskStatus
from trainer.events import Event
from trainer.stack_reading import Activity

_WAITS = frozenset({"peers", "servers"})
_RESUMED = frozenset({"resumed", "started", "restarting", "progress", "evaluated", "done", "failed"})  # not the events of the saving thread
_EVENT_TIMEOUT = 30.0  # seconds: a task that makes progress writes an event at least this often


@dataclass
class Stall:
    """The activity of a task without progress, a key of trainer.stack_reading.ACTIVITY_TEXTS, and since when; empty while it makes progress."""

    activity: str = ""
    since: float | None = None
    message: str = ""
    last_event_at: float | None = None

    def apply(self, event: Event) -> None:
        """Process an event about the task."""
        self.last_event_at = number(event, "time") or self.last_event_at
        if event["event"] == "stalled":
            self.since = (self.last_event_at or 0.0) - (number(event, "seconds") or 0.0)
            self.activity = text(event, "doing")
            description = str(Activity(self.activity, text(event, "place")))
            self.message = ": ".join(filter(None, (f"no progress since {timestamps.rfc3339(self.since, 'seconds')}", description)))
        elif event["event"] in _RESUMED:
            self.activity, self.since, self.message = "", None, ""

    def apply_to(self, task: TaskStatus) -> TaskStatus:
        """Return the status of the task with the stall added."""
        if self.activity and task.state is State.RUNNING and not task.reason:
            task = replace(task, stalled=self.activity, stalled_since=self.since, reason=self.message)
        return replace(task, heard=self.last_event_at)


def awaited_servers(event: Event) -> list[str]:
    """Return the servers that a stalled task waits for, by its event `stalled`; none if it waits for no server."""
    return text(event, "place").split(", ") if text(event, "doing") == "servers" else []


def stall_causes(status: RunStatus) -> list[TaskStatus]:
    """Return the tasks that hold up a run.

    These are the stalled tasks that wait for no other task; if there are none, those that wait for servers; if there are none, the first stalled task.
    """
    stalled = [task for task in status.tasks if task.stalled and task.state not in ENDED]
    candidates = ([task for task in stalled if task.stalled not in waits] for waits in (_WAITS, {"peers"}))
    return next(filter(None, candidates), stalled[:1])


def stall_summary(status: RunStatus) -> str:
    """Return the tasks that hold up a run and their activities, as text; empty if none is stalled.

    If all stalled tasks only wait for peers, the text names the first of them, and the tasks without an event later than 30 s after it stalled.
    """
    causes = stall_causes(status)
    message = "; ".join(f"{task.name} makes {task.reason}" for task in causes)
    if not causes or causes[0].stalled != "peers":
        return message
    unheard = [task.name for task in status.tasks if _wrote_no_event_since(task, causes[0])]
    return message + (f"; {', '.join(unheard)} {'has' if len(unheard) == 1 else 'have'} not been heard of since" if unheard else "")


def _wrote_no_event_since(task: TaskStatus, waiting: TaskStatus) -> bool:
    since = waiting.stalled_since or 0.0
    return (
        not task.stalled
        and task.state not in ENDED
        and task.local_step is None  # else a worker of parameter_server, whose progress the chief reports
        and task.heard is not None
        and task.heard < since + _EVENT_TIMEOUT
    )
