"""Progress events in tasks' output. A user's own program may print what merely looks like one: that stays a line of output."""

from trainer.events import Event, parse, render

# How the launcher marks lines of its own in a task's log.
LAUNCHER_NOTE = "--- launcher: "


def event_in(text: str) -> Event | None:
    """Return the event in a line, or None for ordinary output. What is returned has a task and renders."""
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
