"""Finds, in a program's output, the exception that ended it: the parent has no other information. Pure."""

from __future__ import annotations

import builtins
import errno
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from trainer.error_line import PERMANENT_OS_ERRORS, exception_line

_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "([^"]+)", line (\d+)')
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*)(?:: ?(.*))?$")
# The name of an exception's class at the beginning of a line.
KIND = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*(?:Error|Exception))\b", re.MULTILINE)
_IGNORED = "Exception ignored in"  # Python's prefix for an exception that it ignores, e.g. at shutdown
_ALSO = ("During handling of the above exception", "The above exception was the direct cause")
# AutoGraph's version of a function, in a file of another name each time.
_GENERATED = re.compile(r".*__autograph_generated_file.*")
# Frames that are not the user's own: of the standard library, of installed, compiled or generated code, and without a file.
_FOREIGN = re.compile(r"/(site|dist)-packages/|/lib/python\d|\.pyx$|^autograph$|^<")

# A line of TensorFlow's log, which begins with the time and so differs each time.
_LOG = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|[IWEF]\d{4} \d\d:\d\d|[IWEF]0000 ")

# A time in a message of gRPC: `"created":"@1795564701.013"`.
_TIME = re.compile(r"\d{9,}(?:\.\d+)?")

# Transient errors, by exceptions' names and messages' words: other tasks, the network, memory, disks.
_TRANSIENT_KIND = re.compile(
    r"Unavailable|Aborted|Cancelled|DeadlineExceeded|ResourceExhausted|FailedPrecondition|Timeout|Connection|Rpc|"
    r"gaierror|herror|URLError|HTTPError|SSLError|MemoryError|OutOfMemory|OOM"
)
_TRANSIENT_TEXT = re.compile(
    r"\b(UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|RESOURCE_EXHAUSTED|FAILED_PRECONDITION)\b|Collective ops is aborted|"
    r"[Cc]onnection (reset|refused|closed)|[Ss]ocket closed|[Ff]ailed to connect|[Bb]roken pipe|[Tt]imed out|[Oo]ut of memory|"
    r"No worker known as|uninitialized"
)
_READ_ONLY = f"[Errno {errno.EROFS}]"  # the beginning of an OSError of a read-only file system, which has no class of its own

# Remedies for errors that do not name one: those of Keras 3's `fit` on several workers (docs/keras.md), and our own. A backend quotes a line's last 150
# characters.
_REMEDIES = (
    (
        re.compile(r"ValueError: Attempt to convert a value \(PerReplica:"),
        "make the layers inside the strategy's scope, the model outside it, and fit inside again: docs/keras.md has the lines",
    ),
    (
        re.compile(r"ValueError: Invalid reduction dimension 0 for input with 0 dimensions"),
        "have the model's train_step and test_step return metrics of shape [1]: docs/keras.md has the lines",
    ),
    (
        re.compile(r"RuntimeError: Mixing different tf\.distribute\.Strategy objects"),
        "make the layers, compile and fit inside the strategy's scope: docs/keras.md has the lines",
    ),
    (
        re.compile(r"InvalidArgumentError: Trying to access resource .* located in device "),
        "give the model's compile jit_compile=False: docs/keras.md has the lines",
    ),
    (
        re.compile(r".*joining a group with incompatible device type"),
        "give all workers the same `gpus`, or none: here some have a GPU and others none, see docs/keras.md",
    ),
    (
        re.compile(r"(BlockingIO|OS)Error: .*Unable to (synchronously )?(create|open) file \(unable to lock file"),
        "give each worker's BackupAndRestore and ModelCheckpoint a path of its own: docs/keras.md says which",
    ),
    (
        re.compile(r"KeyError: 'RUN_DIR'$"),
        "write `storage: {}` in the spec: without it a program in an image of your own has no run directory",
    ),
)


@dataclass(frozen=True)
class ExceptionSummary:
    """The exception that ended a program."""

    line: str  # for people, with the remedy if one is known
    fingerprint: str  # as in user_errors.py; empty for a transient error


def last(output: bytes) -> ExceptionSummary | None:
    """Return the exception of the last traceback in a program's output, None if there is none."""
    return _last(output.decode("utf-8", "replace").replace("\r\n", "\n").split("\n"))


def _last(lines: list[str]) -> ExceptionSummary | None:
    span = _find(lines)
    if span is None:
        return None
    first, end = span
    if first and lines[first - 1].startswith(_IGNORED):
        return _last(lines[: first - 1])
    exception = _EXCEPTION.match(lines[end])
    assert exception is not None  # noqa: S101 - _find says so
    frames = [(_GENERATED.sub("autograph", match[1]), match[2]) for line in lines[first:end] if (match := _FRAME.match(line))]
    user_frame = next((frame for frame in reversed(frames) if not _FOREIGN.search(frame[0])), None)
    kind = exception[1].rpartition(".")[2]
    line = exception_line(kind, "\n".join([exception[2] or "", *lines[end + 1 :]]))
    line = line[:-2] if line.endswith(": ") else line
    advice = remedy(line)
    shown = (f"{line} ({':'.join(user_frame)})" if user_frame else line) + (f"; {advice}" if advice else "")
    # In a chain of exceptions, the first one names a lost peer.
    printed = "\n".join(lines[_chain(lines, first) :])
    transient = is_transient([kind, *KIND.findall(printed)], printed)
    fingerprint = f"{kind} at {':'.join(user_frame or frames[-1])}, in {':'.join(frames[-1])}"
    # The program may have logged this exception and continued: then the output after it must be the same, too.
    since = [line for line in lines[end + 1 :] if line.strip() and not _LOG.match(line)]
    fingerprint += f", {zlib.crc32(_TIME.sub('#', chr(10).join(since)).encode()):08x} since" if since and not advice else ""
    permanent = bool(advice) or (exception[2] or "").startswith(_READ_ONLY)
    return ExceptionSummary(shown, "" if transient and not permanent else fingerprint)


def _find(lines: list[str]) -> tuple[int, int] | None:
    """Return the lines at which the last traceback and its exception begin; None if the output has none or ends inside one.

    TensorFlow's messages also list frames, below the exception: those that created an operation. No exception follows them.
    """
    for frame in (number for number in range(len(lines) - 1, -1, -1) if _FRAME.match(lines[number])):
        end = next((number for number in range(frame + 1, len(lines)) if not lines[number].startswith(" ")), None)
        if end is None:
            return None
        if _EXCEPTION.match(lines[end]):
            return _beginning(lines, frame), end
    return None


def _beginning(lines: list[str], frame: int) -> int:
    """Return the first line of a frame's traceback: its heading, or the frame itself, since syntax errors have no heading."""
    heading = next((number for number in range(frame, -1, -1) if lines[number].endswith(_HEADER)), None)
    return frame if heading is None or any(line and not line.startswith(" ") for line in lines[heading + 1 : frame]) else heading


def _chain(lines: list[str], first: int) -> int:
    """Return the first line of the chain of tracebacks that leads to the one at `first`."""
    before = next((number for number in range(first - 1, -1, -1) if lines[number]), None)
    if before is None or not lines[before].startswith(_ALSO):
        return first
    earlier = _find(lines[:before])
    return _chain(lines, earlier[0]) if earlier else first


def remedy(line: str) -> str:
    """Return the remedy for an error line; empty if none is known."""
    return next((text for pattern, text in _REMEDIES if pattern.match(line)), "")


def is_transient(kinds: Iterable[str], text: str) -> bool:
    """Return whether the name of an exception's class, or a text, names a transient error."""
    return any(map(_is_transient_kind, kinds)) or bool(_TRANSIENT_TEXT.search(text))


def _is_transient_kind(kind: str) -> bool:
    known = getattr(builtins, kind, None)
    system = isinstance(known, type) and issubclass(known, OSError) and kind not in PERMANENT_OS_ERRORS
    return system or bool(_TRANSIENT_KIND.search(kind))
