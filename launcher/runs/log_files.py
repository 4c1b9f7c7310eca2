"""A task's log file: how its lines are stamped and written, and how they are read back.

One line a line of output: `<RFC 3339 UTC time with milliseconds> <text>`, the text as it was written, whatever its bytes. Times never go
back within a file, so a time is found by bisection.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from launcher.runs.event_lines import LONGEST_LINE, log_line
from launcher.runs.status import LogLine
from launcher.timestamps import rfc3339, seconds
from trainer.events import escaped

_STAMP_LENGTH = len("2026-01-31T00:00:00.000Z")
_BLOCK = 64 * 1024


class LogWriter:
    """Appends a task's output to its log. A full disk loses lines, never the run; how many is written when it works again."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        _end_last_line(self._fd)
        self._partial = b""
        self._in_line = False  # the partial line is the rest of one that was too long
        self._latest = _last_time(path)
        self._lost = 0
        self.bytes_fed = 0

    def feed(self, output: bytes) -> list[bytes]:
        """Write what came out of the task; return the lines that are complete now, without their ends."""
        self.bytes_fed += len(output)
        *lines, self._partial = (self._partial + output).split(b"\n")
        if lines and self._in_line:
            lines[0], self._in_line = escaped(lines[0]), False
        if len(self._partial) > LONGEST_LINE:
            lines.append(escaped(self._partial) if self._in_line else self._partial)
            self._partial, self._in_line = b"", True
        self._write(lines)
        return lines

    def end(self) -> list[bytes]:
        """Write a last line that has no end; return it."""
        return self.feed(b"\n") if self._partial else []

    def note(self, text: str) -> None:
        """Write a line of the launcher's own, marked as such."""
        self.end()
        self._write([f"--- launcher: {text}".encode()])

    def close(self) -> None:
        """Write what is left and close the file."""
        self.end()
        os.close(self._fd)

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        self._latest = max(self._latest, time.time())
        prefix = rfc3339(self._latest).encode() + b" "
        body = b"".join(prefix + line + b"\n" for line in lines)
        if self._lost:
            body = prefix + f"--- launcher: {self._lost} lines could not be written here\n".encode() + body
        try:
            written = os.write(self._fd, body)
        except OSError:
            self._lost += len(lines)
            return
        self._lost = 0
        if written < len(body):  # the disk filled up on the way: what is missing may start inside a line
            self._lost = body[written:].count(b"\n")
            with contextlib.suppress(OSError):
                os.write(self._fd, b"\n")


def _end_last_line(fd: int) -> None:
    """End a line that a writer did not live to end."""
    size = os.lseek(fd, 0, os.SEEK_END)
    if size and os.pread(fd, 1, size - 1) != b"\n":
        with contextlib.suppress(OSError):
            os.write(fd, b"\n")


def _last_time(path: Path) -> float:
    last = 0.0
    with path.open("rb") as file:
        file.seek(tail_offset(path, 1))
        for line in file:
            last = parse(line, path.stem, last).time
    return last


def parse(line: bytes, task: str, earlier: float) -> LogLine:
    """Return a line of a log file. A damaged one has the time of the line before it, `earlier`."""
    stamp, rest = line[:_STAMP_LENGTH], line[_STAMP_LENGTH:]
    if stamp.endswith(b"Z") and rest.startswith(b" ") and (moment := seconds(stamp.decode("ascii", "replace"))) is not None:
        return log_line(moment, task, rest[1:].removesuffix(b"\n"))
    return log_line(earlier, task, line.removesuffix(b"\n"))


def read(path: Path, offset: int) -> Iterator[tuple[int, LogLine]]:
    """Yield the complete lines from `offset` on, each with the offset after it. Nothing when there is no file."""
    earlier = 0.0
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size <= offset:  # nothing new: anyone who follows a log asks five times a second
            return
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(offset)
        for raw in file:
            if not raw.endswith(b"\n"):
                return
            offset += len(raw)
            line = parse(raw, path.stem, earlier)
            earlier = line.time
            yield offset, line


def since_offset(path: Path, since: float) -> int:
    """Return the offset of the first line at or after `since` (seconds since the epoch), by bisection."""
    wanted = rfc3339(since).encode()
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        low, high = 0, file.seek(0, os.SEEK_END)
        while low < high:
            middle = (low + high) // 2
            start = _line_start(file.fileno(), middle)
            file.seek(start)
            line = file.readline()
            if line[:_STAMP_LENGTH] < wanted:
                low = start + len(line)
            else:
                high = start
        return low
    return 0


def tail_offset(path: Path, lines: int) -> int:
    """Return the offset of the last `lines` lines, read from the end; 0 when there are fewer."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        if lines <= 0:
            return end
        position, missing = end, lines + 1  # the end of the line before the first one wanted
        while position > 0:
            start = max(0, position - _BLOCK)
            file.seek(start)
            block = file.read(position - start)
            found = block.count(b"\n")
            if found >= missing:
                cut = len(block)
                for _ in range(missing):
                    cut = block.rfind(b"\n", 0, cut)
                return start + cut + 1
            missing -= found
            position = start
    return 0


def _line_start(fd: int, position: int) -> int:
    """Return where the line that `position` is in starts."""
    while position > 0:
        start = max(0, position - _BLOCK)
        found = os.pread(fd, position - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        position = start
    return 0
