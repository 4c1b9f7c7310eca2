"""A task's log file: writes lines with time stamps, and reads them back.

A line is `<RFC 3339 UTC time with milliseconds> <text>`. The text is an unchanged line of output, a part of one longer than LONGEST_LINE,
or a note by the launcher. Times never decrease within a file, so a time is found by bisection.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.runs.event_lines import LONGEST_LINE, log_line
from launcher.runs.status import LogLine
from launcher.timestamps import parse_rfc3339, rfc3339
from trainer.events import escaped

_STAMP_LENGTH = len("2026-01-31T00:00:00.000Z")
_BLOCK = 64 * 1024
_MAX_DAMAGED_LINES = 100  # in a row, that a reader steps back over to find a time


class LineWriter:
    """Appends lines to an open file, each after its time. A full disk loses lines; once there is room, a note says how many and since when."""

    def __init__(self, fd: int, note_prefix: str = "") -> None:
        """Write to `fd`; `note_prefix` begins the note about lost lines."""
        self._fd, self._note_prefix = fd, note_prefix
        self._lost, self._lost_since = 0, 0.0
        self._is_partial = False  # the last line in the file has no end

    @property
    def has_lost(self) -> bool:
        """Whether lines were lost that no note mentions yet."""
        return self._lost > 0

    def write(self, lines: Sequence[bytes], now: float) -> None:
        """Write the note about lost lines, if there are any, and then the lines."""
        prefix = rfc3339(now).encode() + b" "
        note = b"\n" if self._is_partial else b""
        if self._lost:
            count = "1 line" if self._lost == 1 else f"{self._lost:,} lines"
            note += prefix + f"{self._note_prefix}{count} could not be written here, the first at {rfc3339(self._lost_since)}\n".encode()
        body = note + b"".join(prefix + line + b"\n" for line in lines)
        written = 0
        with contextlib.suppress(OSError):
            written = os.write(self._fd, body)
        if written:
            self._is_partial = body[written - 1 : written] != b"\n"
        if written < len(note):
            self._lost_since = self._lost_since if self._lost else now
            self._lost += len(lines)
            return
        # If the disk filled up during this write, the missing part may start inside a line.
        self._lost, self._lost_since = body[written:].count(b"\n"), now


class LogWriter:
    """Appends a task's output to its log. A full disk loses lines, never the run."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        _end_last_line(self._fd)
        self._lines = LineWriter(self._fd, "--- launcher: ")
        self._partial = b""
        self._is_continuation = False  # the partial line continues one that was cut
        self._latest = _last_time(path)
        self.bytes_fed = 0

    def feed(self, output: bytes) -> list[bytes]:
        """Write output of the task; return the lines that are complete now, without their line ends."""
        self.bytes_fed += len(output)
        *lines, self._partial = (self._partial + output).split(b"\n")
        if lines and self._is_continuation:
            lines[0], self._is_continuation = escaped(lines[0]), False
        if len(self._partial) > LONGEST_LINE:
            lines.append(escaped(self._partial) if self._is_continuation else self._partial)
            self._partial, self._is_continuation = b"", True
        self._write(lines)
        return lines

    def end(self) -> list[bytes]:
        """Write the last line even if it has no line end; return it."""
        lines = self.feed(b"\n") if self._partial else []
        self._is_continuation = False  # if the line that was too long has ended without a rest
        return lines

    def note(self, text: str) -> None:
        """Write a line of the launcher's own, with a prefix that says so."""
        self.end()
        self._write([f"--- launcher: {text}".encode()])

    def note_lost_lines(self) -> None:
        """Write how many lines a full disk has lost, if there is room again."""
        self._write([])

    def close(self) -> None:
        """Write the rest and close the file."""
        self.end()
        self.note_lost_lines()
        os.close(self._fd)

    def _write(self, lines: list[bytes]) -> None:
        if lines or self._lines.has_lost:
            self._latest = max(self._latest, time.time())
            self._lines.write(lines, self._latest)


def _end_last_line(fd: int) -> None:
    """End a line that a killed writer has left without its end."""
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


def parse(line: bytes, task: str, previous_time: float) -> LogLine:
    """Return a line of a log file. A damaged line gets the time of the line before it, `previous_time`."""
    moment = _time_of(line)
    if moment is not None:
        return log_line(moment, task, line[_STAMP_LENGTH + 1 :].removesuffix(b"\n"))
    return log_line(previous_time, task, line.removesuffix(b"\n"))


def _time_of(line: bytes) -> float | None:
    """Return the time with which a line begins; None if the line is damaged."""
    stamp = line[:_STAMP_LENGTH]
    has_stamp = stamp.endswith(b"Z") and line[_STAMP_LENGTH : _STAMP_LENGTH + 1] == b" "
    return parse_rfc3339(stamp.decode("ascii", "replace")) if has_stamp else None


def read(path: Path, offset: int) -> Iterator[tuple[int, LogLine]]:
    """Yield the complete lines from `offset` on, each with the offset after it; none if there is no file."""
    previous_time = 0.0
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size <= offset:  # nothing new; a reader that follows a log checks five times a second
            return
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        fd = file.fileno()
        position = _line_start(fd, offset - 1)  # of the line before: a damaged line gets its time, or that of an earlier one
        for _ in range(_MAX_DAMAGED_LINES):
            if position == 0 or _time_of(os.pread(fd, _STAMP_LENGTH + 1, position)) is not None:
                break
            position = _line_start(fd, position - 1)
        file.seek(position)
        for raw in file:
            if not raw.endswith(b"\n"):
                return
            position += len(raw)
            line = parse(raw, path.stem, previous_time)
            previous_time = line.time
            if position > offset:
                yield position, line


def since_offset(path: Path, since: float) -> int:
    """Return the offset of the first line at or after `since` (seconds since the epoch), by bisection."""
    stamp = rfc3339(since).encode()
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        low, high = 0, file.seek(0, os.SEEK_END)
        while low < high:
            middle = (low + high) // 2
            start = _line_start(file.fileno(), middle)
            file.seek(start)
            line = file.readline()
            if line[:_STAMP_LENGTH] < stamp:
                low = start + len(line)
            else:
                high = start
        return low
    return 0


def tail_offset(path: Path, lines: int) -> int:
    """Return the offset of the last `lines` lines, read from the end; 0 if there are fewer."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        if lines <= 0:
            return end
        position, missing = end, lines + 1  # one more line end: that of the line before them
        while position > 0:
            start = max(0, position - _BLOCK)
            file.seek(start)
            block = file.read(position - start)
            ends = block.count(b"\n")
            if ends >= missing:
                cut = len(block)
                for _ in range(missing):
                    cut = block.rfind(b"\n", 0, cut)
                return start + cut + 1
            missing -= ends
            position = start
    return 0


def _line_start(fd: int, position: int) -> int:
    """Return the offset of the start of the line that contains `position`."""
    while position > 0:
        start = max(0, position - _BLOCK)
        end = os.pread(fd, position - start, start).rfind(b"\n")
        if end >= 0:
            return start + end + 1
        position = start
    return 0
