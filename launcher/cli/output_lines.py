"""Progress events in tasks' output. A line of a user's program that only looks like one stays output."""

import re

from launcher.runs.status import LogLine
from trainer.events import Event, parse, render, unescaped

# The beginning of the launcher's own lines in a task's log.
LAUNCHER_NOTE = "--- launcher: "


def event_in(text: str) -> Event | None:
    """Return the event in a line, or None for ordinary output. A returned event has a task and can be rendered."""
    event = parse(text)
    if event is None or not isinstance(event.get("task"), str):
        return None
    if event["event"] in {"progress", "checkpoint"} and not isinstance(event.get("step"), int):
        return None
    if event["event"] == "progress" and not isinstance(event.get("steps"), int):
        return None
    try:
        render(event)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return event


def shown(line: LogLine) -> str:
    """Return a line of output for people."""
    return unescaped(line.text.encode()).decode() if line.text.startswith(" ") else line.text


def raw(line: LogLine) -> bytes:
    """Return a line of output as its task wrote it."""
    return unescaped(line.raw)


# TensorFlow's C++ log at level INFO, absl's warning before its initialization, and the launcher's line about the start, in each task's log.
_NOISE = re.compile(
    r"I\d{4} \d\d:\d\d:\d+\.\d+\s+\d+ \S+:\d+\] "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I \w+/"
    r"|WARNING: All log messages before absl::InitializeLog"
    rf"|{LAUNCHER_NOTE}run \S+ starts$"
)


def is_noise(text: str) -> bool:
    """Return whether a line is noise, which `up` leaves out and `logs` shows."""
    return _NOISE.match(text) is not None
