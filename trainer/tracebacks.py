"""Finds in a program's output the exception that ended it, for its parent, which sees no more of a program than that. Pure."""

from __future__ import annotations

import builtins
import errno
import re
import zlib
from dataclasses import dataclass

from trainer.error_line import line_of

_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "([^"]+)", line (\d+)')
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*)(?:: ?(.*))?$")
_KIND = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*(?:Error|Exception))\b", re.MULTILINE)
_IGNORED = "Exception ignored in"  # what Python says of an exception that ended nothing, while it finishes say
_ALSO = ("During handling of the above exception", "The above exception was the direct cause")
# Frames that are not the user's own: the standard library, what is installed, what has no file.
_FOREIGN = re.compile(r"/(site|dist)-packages/|/lib/python\d|^<")

# A line of TensorFlow's log, which says when and is another each time.
_LOG = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|[IWEF]\d{4} \d\d:\d\d|[IWEF]0000 ")

# What may be gone when it is tried again, by the names of exceptions and by what messages say: other tasks, the network, memory, disks.
_PASSING_KIND = re.compile(
    r"Unavailable|Aborted|Cancelled|DeadlineExceeded|ResourceExhausted|FailedPrecondition|Timeout|Connection|Rpc|"
    r"gaierror|herror|URLError|HTTPError|SSLError|MemoryError|OutOfMemory|OOM"
)
_PASSING_MESSAGE = re.compile(
    r"\b(UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|RESOURCE_EXHAUSTED|FAILED_PRECONDITION)\b|Collective ops is aborted|"
    r"[Cc]onnection (reset|refused|closed)|[Ss]ocket closed|[Ff]ailed to connect|[Bb]roken pipe|[Tt]imed out|[Oo]ut of memory|"
    r"No worker known as|uninitialized"
)
# Errors of files that stay: one that is not there, and what is not allowed.
_LASTING = ("FileNotFoundError", "PermissionError", "IsADirectoryError", "NotADirectoryError")
_READ_ONLY = f"[Errno {errno.EROFS}]"  # how an OSError begins for a file system that is mounted so, which has no class of its own


@dataclass(frozen=True)
class Raised:
    """The exception that ended a program: its line for people, and the fingerprint of user_errors.py, empty for what may pass."""

    line: str
    fingerprint: str


def last(output: bytes) -> Raised | None:
    """Return the exception of the last traceback in a program's output, None where there is none."""
    return _last(output.decode("utf-8", "replace").replace("\r\n", "\n").split("\n"))


def _last(lines: list[str]) -> Raised | None:
    frame = next((number for number in range(len(lines) - 1, -1, -1) if _FRAME.match(lines[number])), None)
    if frame is None:
        return None
    first = _beginning(lines, frame)
    if first and lines[first - 1].startswith(_IGNORED):
        return _last(lines[: first - 1])
    end = next((number for number in range(frame + 1, len(lines)) if not lines[number].startswith(" ")), len(lines))
    found = _EXCEPTION.match(lines[end]) if end < len(lines) else None
    if found is None:
        return None
    places = [(match[1], match[2]) for line in lines[first:end] if (match := _FRAME.match(line))]
    own = next((place for place in reversed(places) if not _FOREIGN.search(place[0])), None)
    kind = found[1].rpartition(".")[2]
    line = line_of(kind, "\n".join([found[2] or "", *lines[end + 1 :]]))
    line = line[:-2] if line.endswith(": ") else line
    shown = f"{line} ({':'.join(own)})" if own else line
    # A lost peer is told of by the first of the exceptions that led to each other.
    told = "\n".join(lines[_chain(lines, first) :])
    passing = _passes(kind) or any(map(_passes, _KIND.findall(told))) or _PASSING_MESSAGE.search(told)
    same = f"{kind} at {':'.join(own or places[-1])}, in {':'.join(places[-1])}"
    # It may be one that the program has shown, and went on: then what it wrote since must be the same, too.
    since = [one for one in lines[end + 1 :] if one.strip() and not _LOG.match(one)]
    same += f", {zlib.crc32(chr(10).join(since).encode()):08x} since" if since else ""
    stays = (found[2] or "").startswith(_READ_ONLY)
    return Raised(shown, "" if passing and not stays else same)


def _beginning(lines: list[str], frame: int) -> int:
    """Return the line where the traceback of a frame begins: its heading, or the frame alone, as errors of syntax have it."""
    heading = next((number for number in range(frame, -1, -1) if lines[number].endswith(_HEADER)), None)
    return frame if heading is None or any(line and not line.startswith(" ") for line in lines[heading + 1 : frame]) else heading


def _chain(lines: list[str], first: int) -> int:
    """Return the line where the first of the tracebacks begins that led to the one that begins at `first`."""
    before = next((number for number in range(first - 1, -1, -1) if lines[number]), None)
    if before is None or not lines[before].startswith(_ALSO):
        return first
    frames = [number for number in range(before) if _FRAME.match(lines[number])]
    return _chain(lines, _beginning(lines, frames[-1])) if frames else first


def _passes(kind: str) -> bool:
    known = getattr(builtins, kind, None)
    system = isinstance(known, type) and issubclass(known, OSError) and kind not in _LASTING
    return system or bool(_PASSING_KIND.search(kind))
