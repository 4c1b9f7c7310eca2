"""The messages that people get about a run, and when they are due. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher import timestamps
from launcher.runs.stalled_tasks import stall_causes, stall_summary
from launcher.runs.status import ENDED, RunStatus, State

_VERSION = 1  # of the payload
_MAX_REASON = 2000  # characters
_MAX_TASKS = 20  # that one message names; if more tasks stall, the whole run does
_EVENT_TEXTS = {"succeeded": "has succeeded", "failed": "has failed", "stalled": "makes no progress"}
# Seconds to wait before a stall is reported: `on_stall: restart` ends most stalls at once, and a task that only waits for the stalled one may be seen first.
STALL_GRACE = 10.0


@dataclass(frozen=True)
class Message:
    """One message. The stall of `stalled_tasks` began at `since`; `at` is the time of the event. Seconds since the epoch."""

    event: str  # succeeded, failed, stalled
    name: str
    backend: str
    state: str
    reason: str
    step: int | None
    steps: int | None
    at: float
    started: float | None
    stalled_tasks: tuple[str, ...] = ()
    since: float = 0.0

    @property
    def entry_keys(self) -> tuple[str, ...]:
        """The keys under which it is recorded as sent: one for the end of a run, else one for each stalled task."""
        return tuple(f"stalled {task}" for task in self.stalled_tasks) or ("ended",)

    @property
    def text(self) -> str:
        """The message in one line."""
        of = "" if self.steps is None else f" of {self.steps:,}"
        step = "" if self.step is None else f" at step {self.step:,}{of}"
        return f"{self.name} {_EVENT_TEXTS[self.event]}{step}" + (f": {self.reason}" if self.reason else "")

    def payload(self) -> dict[str, Any]:
        """Return the message as a JSON object. Its id is the same for each try, and at the end of a run for each process that sends it."""
        identity = (self.name, self.backend, self.started, self.event, self.stalled_tasks, int(self.since))
        return {
            "version": _VERSION,
            "id": hashlib.sha256(repr(identity).encode()).hexdigest()[:16],
            "event": self.event,
            "name": self.name,
            "backend": self.backend,
            "state": self.state,
            "reason": self.reason,
            "step": self.step,
            "steps": self.steps,
            "time": timestamps.rfc3339(self.at, "seconds"),
            "text": self.text,
        }


def end_message(status: RunStatus, now: float) -> Message | None:
    """Return the message of a run that has succeeded or failed; None for one that runs or was stopped."""
    if status.state not in {State.SUCCEEDED, State.FAILED}:
        return None
    return _message(str(status.state), status, status.reason or status.ended_early, status.ended or now)


def stall_message(status: RunStatus) -> Message | None:
    """Return the message of a run that makes no progress, about the tasks that hold it up; None if there are none."""
    causes = () if status.state in ENDED else stall_causes(status)
    if not causes:
        return None
    since = min(task.stalled_since or 0.0 for task in causes)
    names = tuple(task.name for task in causes[:_MAX_TASKS])
    return _message("stalled", status, stall_summary(status), since, stalled_tasks=names, since=since)


def variables(payload: Mapping[str, Any]) -> dict[str, str]:
    """Return a message as environment variables for a program, which also gets it as JSON."""
    keys = ("event", "name", "state", "reason", "step", "time", "text")
    return {f"NOTIFY_{key.upper()}": "" if payload[key] is None else str(payload[key]) for key in keys}


def _message(event: str, status: RunStatus, reason: str, at: float, *, stalled_tasks: tuple[str, ...] = (), since: float = 0.0) -> Message:
    line = " ".join("".join(character if character.isprintable() else " " for character in reason).split())
    short = line if len(line) <= _MAX_REASON else f"{line[: _MAX_REASON - 3]}..."
    return Message(
        event, status.name, status.backend, str(status.state), short, status.step, status.steps, at, status.started, stalled_tasks, since
    )


class DueMessages:
    """Decides which messages are due, from successive statuses of a run. The caller's times have to come from one clock."""

    def __init__(self) -> None:
        self._stalled_since: dict[str, float] = {}  # task -> since when it has been a cause of the stall in every status

    @property
    def is_stalled(self) -> bool:
        """Whether a task held up the run in the last status."""
        return bool(self._stalled_since)

    def check(self, status: RunStatus, now: float) -> list[Message]:
        """Return the messages that are due at `now`, whether they were sent or not."""
        if (end := end_message(status, now)) is not None:
            return [end]
        stall = stall_message(status)
        stalled = {} if stall is None else {name: self._stalled_since.get(name, now) for name in stall.stalled_tasks}
        self._stalled_since = stalled
        return [stall] if stall is not None and any(now - since >= STALL_GRACE for since in stalled.values()) else []
