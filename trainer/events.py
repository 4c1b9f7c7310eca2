"""Progress events: one JSON object per line on stdout for machines, or a readable line for people.

Every event has `event` (its kind), `time` (seconds since the epoch) and `task` (`chief`, `worker-0`).
FIELDS lists what each kind adds. The launcher reads the lines back with `parse`; `escaped` keeps a program's own lines apart from them.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Dict, Protocol

from trainer.stack_reading import Activity, no_progress_message

Event = Dict[str, Any]

EVENT_PREFIX = b'{"event":'  # how the line of an event begins
EVENTS_FD_VARIABLE = "TRAINER_EVENTS_FD"  # the pipe on which a training process writes its events, as JSON, for its parent to pass on

# kind -> its fields besides event, time and task, and its meaning.
FIELDS: dict[str, str] = {
    "started": "attempt (int, from 1), role, pid: a training process was started",
    "waiting": "missing ([{task, address, reason}]), more (number of others), seconds (waited so far), timeout: peers do not answer yet. "
    "With none missing: seconds since every peer was reached, without a step; doing and place as in `stalled`",
    "ready": "seconds: every peer answers and the model is built; training starts. Of a user's own program, after a `waiting`: all required peers answer",
    "restored": "step, path: training continues from a checkpoint",
    "progress": "step, steps, loss (where known), metrics ({name: float}), examples_per_second, seconds_per_step; a worker adds local_step; "
    "input_wait, peer_wait (parts of the time, 0 to 1, spent waiting for input and for others' gradients), dropped (gradients that came too late)",
    "evaluated": "step, metrics ({name: float}), seconds",
    "exported": "step, path, metric, value: the best model so far, by that metric, is complete on disk; without a metric the last one",
    "checkpoint": "step, path, seconds: a checkpoint is complete on disk",
    "stalled": "seconds (without progress), step, doing (input, code, peers, servers, compiling, tensorflow, stopped, silent, unknown), place (the call, or the servers)",
    "resumed": "seconds: there is progress again, after so long without any",
    "busy": "phase (evaluating, saving, callbacks), seconds: it takes long, and continues",
    "heartbeat": "phase (starting, training, evaluating, saving, callbacks, waiting), step, steps, seconds (of so many steps or batches): from the training process to "
    "its parent only",
    "save_failed": "step, path (of the directory), cause, seconds (for which nothing could be saved), timeout, size and free (bytes that it needs, and "
    "that the volume has; null if the volume does not answer), saved (step of the last checkpoint; null without one): training continues, and saving is retried",
    "notice": "message: information for the user",
    "restarting": "attempt (the next), restarts (counted so far), left (further restarts allowed), exit_code, cause, "
    "detail (the last error line), delay (seconds)",
    "recovered": "restarts (0), left: the count of restarts is 0 again, as training has advanced, or an attempt has run for ten minutes",
    "stopping": "reason: asked to stop; the chief of a run that trains saves a checkpoint first",
    "done": "step, seconds, metrics: the task's work is complete; ended_early: the reason for an end before the last step, if it was one",
    "failed": "exit_code, cause, detail (the last error line; empty if the output has it), process_exit_code (of the training process, "
    "if it ended by itself): the task fails for good",
}

# The kinds that the parent passes on, of its training process or a user's program. Of the others a training process writes only `heartbeat`.
FORWARDED = frozenset({"ready", "restored", "progress", "evaluated", "exported", "checkpoint", "save_failed", "notice", "done"})

FORMATS = ("json", "text")
_HEARTBEAT_INTERVAL = 1.0  # seconds


class Stream(Protocol):
    """The destination of events."""

    def write(self, text: str, /) -> object:
        """Accept whole lines."""

    def flush(self) -> object:
        """Write all accepted lines."""

    def isatty(self) -> bool:
        """Return whether it is a terminal."""


def stream_format(stream: Stream | None = None) -> str:
    """Return how events are written: TRAINER_EVENTS if set, else text on a terminal and json in a pipe."""
    chosen = os.environ.get("TRAINER_EVENTS", "")
    if chosen in FORMATS:
        return chosen
    return "text" if (stream or sys.stdout).isatty() else "json"


def finite(value: Any) -> Any:
    """Return `value` with None for each number that is not finite, which JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, (list, tuple)) else value


def join_names(names: Sequence[str], limit: int) -> str:
    """Join names by commas; after the first `limit`, only their number follows."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


class Reporter:
    """Writes the events of one task to a stream, each line at once and whole."""

    def __init__(self, task: str, stream: Stream | None = None) -> None:
        self.task = task
        self.start_step: int | None = None  # the step from which this attempt has continued
        parent = None if stream else _to_parent()
        self._stream: Stream = stream or parent or sys.stdout
        self._lock = threading.Lock()  # a thread of its own reports saves
        self._format = "json" if parent else stream_format(self._stream)
        self._has_parent = parent is not None
        self.phase = ""  # the task's current phase, for its parent
        self._unreported: dict[str, tuple[float, int]] = {}  # phase -> time of its last report, steps since

    def __call__(self, kind: str, /, *, task: str | None = None, **fields: Any) -> None:
        """Write one event; `task` names another task than the reporter's own (the chief reports for workers under parameter_server)."""
        event = {"event": kind, "time": round(time.time(), 3), "task": task or self.task, **fields}
        line = json.dumps(finite(event), separators=(",", ":"), allow_nan=False) if self._format == "json" else render(event)
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()

    def heartbeat(self, phase: str, *, step: int | None = None, steps: int = 1) -> None:
        """Inform the parent that `steps` steps, or batches of an evaluation, are done: at most once a second, and whenever a phase begins."""
        now, begins = time.monotonic(), phase != self.phase
        self.phase = phase
        since, done = self._unreported.get(phase, (now, 0))
        done += 0 if begins else steps
        if done and now - since >= _HEARTBEAT_INTERVAL:
            self._to_parent_only(phase, step, seconds=round(now - since, 3), steps=done)
            since, done = now, 0
        elif begins:
            self._to_parent_only(phase, step)
        self._unreported[phase] = since, done

    def _to_parent_only(self, phase: str, step: int | None, **fields: Any) -> None:
        if self._has_parent:
            self("heartbeat", phase=phase, step=step, **fields)


def _to_parent() -> Stream | None:
    """Return the pipe to the parent, None without one. Child processes do not inherit it."""
    number = os.environ.pop(EVENTS_FD_VARIABLE, "")
    if not number.isdecimal():
        return None
    os.set_inheritable(int(number), False)
    return os.fdopen(int(number), "w", encoding="utf-8")


def escaped(line: bytes) -> bytes:
    """Return a line of a program's output for a stream that has events, too: one that begins like an event gets another space before it."""
    return b" " + line if line.lstrip(b" ").startswith(EVENT_PREFIX) else line


def unescaped(line: bytes) -> bytes:
    """Undo `escaped`: return the line as the program wrote it."""
    return line[1:] if line.startswith(b" ") and line.lstrip(b" ").startswith(EVENT_PREFIX) else line


def parse(line: str) -> Event | None:
    """Return the event in a line of output; None for ordinary output, even if it looks like an event."""
    if not line.startswith(EVENT_PREFIX.decode()):
        return None
    try:
        event = json.loads(line)
        if "\\ud" in line.lower():  # an unpaired surrogate can be neither written nor shown
            json.dumps(event, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    kind = event.get("event") if isinstance(event, dict) else None
    return event if isinstance(kind, str) and kind in FIELDS else None


def _numbers(values: dict[str, float | None]) -> str:
    return "  ".join(f"{name} {math.nan if value is None else value:.4g}" for name, value in values.items())


def _progress(event: Event) -> str:
    local = f" (local {event['local_step']})" if "local_step" in event else ""
    parts = [f"step {event['step']}/{event['steps']}{local}"]
    parts.append(_numbers({**{key: event[key] for key in ("loss",) if key in event}, **(event.get("metrics") or {})}))
    if event.get("examples_per_second") is not None:
        parts.append(f"{event['examples_per_second']:,.0f} examples/s")
    waits = [f"{what} {event[key]:.0%}" for key, what in (("input_wait", "input"), ("peer_wait", "peers")) if event.get(key) is not None]
    if waits:
        parts.append(f"waiting for {', '.join(waits)}")
    if event.get("dropped") is not None:
        parts.append(f"{event['dropped']} gradients dropped")
    if event.get("seconds_per_step") is not None:
        parts.append(f"{event['seconds_per_step']:.3g} s/step")
    return "  ".join(filter(None, parts))


def first_step_message(seconds: float, activity: Activity) -> str:
    """Return the message for a task without a first step `seconds` after all peers were reached, with its activity."""
    text = f"waiting for the first step: every peer was reached {seconds:.0f} s ago, and no step has been made since"
    return "; it is ".join(filter(None, (text, str(activity))))


def _stalled_message(event: Event) -> str:
    """Return the message of an event `stalled`."""
    return no_progress_message(event["seconds"], Activity(event["doing"], event["place"]))


def _save_failed_message(event: Event) -> str:
    space = "" if event.get("free") is None else f" ({event['size']:,} bytes are to be saved, {event['free']:,} are free)"
    last = "nothing is saved yet" if event.get("saved") is None else f"the last checkpoint is of step {event['saved']}"
    return (
        f"step {event['step']} could not be saved to {event['path']}: {event['cause']}{space}; {last}; it is tried again, "
        f"and the run ends when nothing could be saved for {event['timeout']:.0f} s ({event['seconds']:.0f} s until now)"
    )


def render(event: Event) -> str:
    """Return the readable line for an event, without time and task."""
    kind = event["event"]
    if kind == "progress":
        return _progress(event)
    if kind == "stalled":
        return _stalled_message(event)
    if kind == "save_failed":
        return _save_failed_message(event)
    if kind == "waiting" and not event["missing"]:
        return first_step_message(event["seconds"], Activity(event.get("doing", "unknown"), event.get("place", "")))
    if kind == "waiting":
        missing = ", ".join(f"{m['task']} ({m['address']}: {m['reason']})" for m in event["missing"])
        more = f" and {event['more']} more" if event.get("more") else ""
        return f"waiting for {missing}{more}: {event['seconds']:.0f} s of {event['timeout']:.0f} s"
    templates = {
        "started": "attempt {attempt} started as {role}, pid {pid}",
        "ready": "ready after {seconds:.1f} s",
        "restored": "continuing from step {step} ({path})",
        "checkpoint": "checkpoint at step {step}: {path}",
        "notice": "{message}",
        "restarting": "starting again in {delay:.1f} s (attempt {attempt}): {cause}",
        "recovered": "earlier restarts no longer count; {left} left",
        "stopping": "stopping: {reason}",
        "resumed": "continues after {seconds:.0f} s without progress",
        "busy": "{phase} for {seconds:.0f} s",
        "failed": "failed: {cause}: {detail}" if event.get("detail") else "failed: {cause}",
    }
    if kind == "exported":
        by = f", {event['metric']} {event['value']:.4g}" if event.get("metric") else ""
        return f"exported the model of step {event['step']}{by}: {event['path']}"
    if kind == "evaluated":
        return f"evaluated step {event['step']}: {_numbers(event['metrics'])}"
    if kind == "done":
        at = f" at step {event['step']}" if event.get("step") is not None else ""  # a server does not count steps
        return f"done{at} after {event['seconds']:.1f} s  {_numbers(event.get('metrics') or {})}".rstrip()
    return templates[kind].format(**event)
