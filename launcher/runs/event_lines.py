"""Converts the bytes of an output line into a LogLine: its text as shown, its stored bytes, and whether it may be an event. Pure."""

from launcher.runs.status import LogLine
from trainer.events import escaped

# Output without a line's end becomes a line once it is this long.
LONGEST_LINE = 2 * 1024 * 1024


def as_shown(line: bytes) -> bytes:
    """Return what a terminal would show of a line whose parts overwrite each other, as progress bars do."""
    if b"\r" not in line:
        return line
    parts = [part for part in line.split(b"\r") if part]
    # A part after a carriage return is no event: only a whole line can be one.
    return escaped(parts[-1]) if parts else b""


def log_line(time: float, task: str, written: bytes, *, has_events: bool = True) -> LogLine:
    """Return the LogLine of the bytes of a line, without its line end.

    `has_events`: a trainer writes this output, so a line that begins like an event is one.
    """
    if not has_events:
        written = escaped(written)
    text = as_shown(written).decode("utf-8", "replace")
    return LogLine(time, task, text, None if text.encode() == written else written)
