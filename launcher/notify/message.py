"""The message that people get of a run, and when it is due. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher import timestamps
from launcher.runs.stalled_tasks import stall_causes, stall_summary
from launcher.runs.status import ENDED, RunStatus, State

_VERSION = 1  # of the payload
_LONGEST = 2000  # characters of a reason
_MAX_TASKS = 20  # that one message is about: a stall of more than that is one of all
_VERBS = {"succeeded": "has succeeded", "failed": "has failed", "stalled": "makes no progress"}
# Seconds that a stall has to last after its event: `on_stall: restart` ends most at once, and a task that only waits for another is reported first.
STALL_GRACE = 10.0


@dataclass(frozen=True)
class Message:
    """One message. `about` are the tasks of a stall, which began at `since`; `at` is when it happened. Seconds since the epoch."""

    event: str  # succeeded, failed, stalled
    name: str
    backend: str
    state: str
    reason: str
    step: int | None
    steps: int | None
    at: float
    started: float | None
    about: tuple[str, ...] = ()
    since: float = 0.0

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys under which it is recorded as sent: one for the end of a run, else one for each stalled task."""
        return tuple(f"stalled {task}" for task in self.about) or ("ended",)

    @property
    def text(self) -> str:
        """The message in one line."""
        of = "" if self.steps is None else f" of {self.steps:,}"
        step = "" if self.step is None else f" at step {self.step:,}{of}"
        return f"{self.name} {_VERBS[self.event]}{step}" + (f": {self.reason}" if self.reason else "")

    def payload(self) -> dict[str, Any]:
        """Return the message as a JSON object. Its id is the same however often it is sent, and by whichever process."""
        identity = (self.name, self.backend, self.started, self.event, self.about, int(self.since))
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
            "time": timestamps.to_the_second(self.at),
            "text": self.text,
        }


def of_end(status: RunStatus, now: float) -> Message | None:
    """Return the message of a run that has succeeded or failed; None of one that goes on, or that somebody has stopped."""
    if status.state not in {State.SUCCEEDED, State.FAILED}:
        return None
    return _made(str(status.state), status, status.reason or status.ended_early, status.ended or now)


def of_stall(status: RunStatus) -> Message | None:
    """Return the message of a run that makes no progress, about the tasks that hold it up; None where none does."""
    found = () if status.state in ENDED else stall_causes(status)
    if not found:
        return None
    since = min(task.stalled_since or 0.0 for task in found)
    names = tuple(task.name for task in found[:_MAX_TASKS])
    return _made("stalled", status, stall_summary(status), since, about=names, since=since)


def variables(payload: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables by which a program gets a message, beside its JSON."""
    keys = ("event", "name", "state", "reason", "step", "time", "text")
    return {f"NOTIFY_{key.upper()}": "" if payload[key] is None else str(payload[key]) for key in keys}


def _made(event: str, status: RunStatus, reason: str, at: float, *, about: tuple[str, ...] = (), since: float = 0.0) -> Message:
    line = " ".join("".join(character if character.isprintable() else " " for character in reason).split())
    short = line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
    return Message(
        event, status.name, status.backend, str(status.state), short, status.step, status.steps, at, status.started, about, since
    )


class DueMessages:
    """Says which messages are due, by how a run is seen to be. Times are of one clock of the caller's."""

    def __init__(self) -> None:
        self._stalled_since: dict[str, float] = {}  # by task, since when it was seen to hold up the run without a break

    @property
    def is_stalled(self) -> bool:
        """Whether a task held up the run when it was looked at last."""
        return bool(self._stalled_since)

    def check(self, status: RunStatus, now: float) -> list[Message]:
        """Return the messages that are due at `now`, whether they were sent or not."""
        if (end := of_end(status, now)) is not None:
            return [end]
        stall = of_stall(status)
        there = {} if stall is None else {name: self._stalled_since.get(name, now) for name in stall.about}
        self._stalled_since = there
        return [stall] if stall is not None and any(now - since >= STALL_GRACE for since in there.values()) else []
