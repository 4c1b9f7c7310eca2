"""Progress events in tasks' output. A user's own program may print what merely looks like one: that stays a line of output."""

import re

from launcher.runs.status import LogLine
from trainer.events import Event, parse, render, unescaped

# How the launcher marks lines of its own in a task's log.
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
    """Return what people see of a line of output."""
    return unescaped(line.text.encode()).decode() if line.text.startswith(" ") else line.text


def raw(line: LogLine) -> bytes:
    """Return a line of output as its task wrote it."""
    return unescaped(line.raw)


# Lines of TensorFlow's C++ side about itself at level INFO, and absl's before it is set up; and that a run starts, in each task's log.
_CHATTER = re.compile(
    r"I\d{4} \d\d:\d\d:\d+\.\d+\s+\d+ \S+:\d+\] "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I \w+/"
    r"|WARNING: All log messages before absl::InitializeLog"
    rf"|{LAUNCHER_NOTE}run \S+ starts$"
)


def is_tf_noise(text: str) -> bool:
    """Return whether a line of output is noise while a run is watched; `logs` shows it."""
    return _CHATTER.match(text) is not None
