"""Progress of a run, from the events of its tasks.

Events are lines of output, and a user's own program may print a line that looks like one: a field that is missing
or has another type than FIELDS says is ignored.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from launcher.runs.status import SaveFailure
from trainer.events import Event

# Events that end a failure to save: saves, and new processes, which have no failed save yet.
_SAVE_FAILURE_ENDS = frozenset({"checkpoint", "done", "started", "restarting", "failed"})

# Without a supervisor, a status is derived from this many last lines of each task: enough for its last progress, evaluation and checkpoint.
STATUS_LINES = 2000


@dataclass
class RunProgress:
    """The progress of a run. `metrics` are of the last evaluation, else of training; they and the loss are nan if they were not finite."""

    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    training_metrics: dict[str, float] = field(default_factory=dict)
    evaluated_step: int | None = None
    ended_early: str = ""
    examples_per_second: float | None = None
    seconds_per_step: float | None = None
    checkpoint: str | None = None
    checkpoint_step: int | None = None
    save_failed: SaveFailure | None = None
    model: str | None = None
    ready: bool = False
    evaluated: bool = False

    def apply(self, event: Event, *, is_leader: bool) -> None:
        """Process one event; `is_leader`: whether the leader wrote it."""
        kind = text(event, "event")
        if kind in {"ready", "progress"}:
            self.ready = True
        if is_leader:
            self._apply_save_event(event, kind)
        if kind == "evaluated":
            self.metrics, self.evaluated = numbers(event, "metrics"), True
            self.evaluated_step = integer(event, "step")
        elif kind == "exported":  # by the evaluator if there is one
            self.model = text(event, "path") or None
        elif not is_leader:
            return
        elif kind == "progress":
            self._apply_progress(event)
        elif kind == "restored":
            self.step = integer(event, "step")
        elif kind == "checkpoint":
            self._apply_checkpoint(event)
        elif kind == "done":
            self.step = integer(event, "step") or self.step
            self.metrics = numbers(event, "metrics") or self.metrics
            self.ended_early = text(event, "ended_early")

    def fields(self, *, ended: bool) -> dict[str, Any]:
        """Return the fields of RunStatus about progress; a run that has ended has no `eta` and no failed save."""
        return {
            "step": self.step,
            "steps": self.steps,
            "loss": self.loss,
            "metrics": dict(self.metrics),
            "metrics_of": "evaluation" if self.evaluated else "training",
            "training_metrics": dict(self.training_metrics),
            "evaluated_step": self.evaluated_step,
            "ended_early": self.ended_early,
            "examples_per_second": self.examples_per_second,
            "seconds_per_step": self.seconds_per_step,
            "eta": None if ended else self.eta(),
            "checkpoint": self.checkpoint,
            "checkpoint_step": self.checkpoint_step,
            "save_failed": None if ended else self.save_failed,
            "model": self.model,
        }

    def eta(self) -> float | None:
        """Return the seconds until the last step at the current speed."""
        if self.step is None or self.steps is None or self.seconds_per_step is None:
            return None
        return max(0, self.steps - self.step) * self.seconds_per_step

    def _apply_checkpoint(self, event: Event) -> None:
        path = event.get("path")
        self.checkpoint, self.checkpoint_step = path if isinstance(path, str) else None, integer(event, "step")
        if self.step is not None:  # the save at a stop includes steps that no progress event has reported
            self.step = max(self.step, self.checkpoint_step or 0)

    def _apply_save_event(self, event: Event, kind: str) -> None:
        if kind == "save_failed":
            at, seconds, timeout = (number(event, key) for key in ("time", "seconds", "timeout"))
            since = None if at is None or seconds is None else at - seconds
            until = None if since is None or timeout is None else since + timeout
            step, size, free, saved = (integer(event, key) for key in ("step", "size", "free", "saved"))
            self.save_failed = SaveFailure(text(event, "path"), text(event, "cause"), step, size, free, saved, since, until)
        elif kind in _SAVE_FAILURE_ENDS:
            self.save_failed = None

    def _apply_progress(self, event: Event) -> None:
        self.step = integer(event, "step")
        self.steps = integer(event, "steps")
        self.loss = _number_or_nan(event["loss"]) if "loss" in event else None
        self.examples_per_second = number(event, "examples_per_second")
        self.seconds_per_step = number(event, "seconds_per_step")
        self.training_metrics = numbers(event, "metrics")
        self.ended_early = ""
        if not self.evaluated:
            self.metrics = dict(self.training_metrics)


@dataclass
class TaskProgress:
    """Step and speed of one task, from its last progress event; the fields are those of `TaskStatus`."""

    step: int | None = None
    local_step: int | None = None
    examples_per_second: float | None = None
    input_wait: float | None = None
    peer_wait: float | None = None

    @classmethod
    def from_event(cls, event: Event) -> "TaskProgress":
        """Return the fields of a progress event."""
        speeds = (number(event, key) for key in ("examples_per_second", "input_wait", "peer_wait"))
        return cls(integer(event, "step"), integer(event, "local_step"), *speeds)


def integer(event: Event, key: str) -> int | None:
    """Return an integer field; None if it is missing or has another type."""
    value = event.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(event: Event, key: str) -> float | None:
    """Return a finite number; None if it is missing, not finite or has another type."""
    return _finite(event.get(key))


def numbers(event: Event, key: str) -> dict[str, float]:
    """Return the numbers of an object field by name; null stands for a number that was not finite, and becomes nan."""
    value = event.get(key)
    if not isinstance(value, dict):
        return {}
    return {name: finite for name, item in value.items() if (finite := _number_or_nan(item)) is not None}


def text(event: Event, key: str) -> str:
    """Return a text field; empty if it is missing or has another type."""
    value = event.get(key)
    return value if isinstance(value, str) else ""


def _number_or_nan(value: object) -> float | None:
    return math.nan if value is None else _finite(value)


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer that is too large for a float
        return None
