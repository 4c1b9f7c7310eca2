"""A task's output: its program's output and its events in one stream, without confusion of the two.

The program writes to a pipe, and only this process writes to the task's stdout. Each event has a line of its own; a line of the
program that begins like an event gets another space (events.escaped). All other bytes pass unchanged and at once; buffers are bounded,
so a program that writes faster than stdout is read waits. A terminal gets the program's output directly, and unescaped.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import selectors
import stat
import time
from collections.abc import Callable

from trainer.event_loop import EventLoop
from trainer.events import EVENT_PREFIX, Event, parse

_READ = 64 * 1024
_FULL = 64 * 1024  # bytes that wait to be written; with more, nothing is read
_MAX_QUEUED = 1024 * 1024  # the same while all output before an event, or before the end, is read; the largest pipe that a user may have
_TAIL = 64 * 1024  # bytes of the last output to keep
_MAX_EVENT = 1024 * 1024
_STUCK_AFTER = 10.0  # seconds without a byte written after which an ended task gives up

_EVENT_LIKE = re.compile(rb"^( *)(?=" + re.escape(EVENT_PREFIX) + rb")", re.MULTILINE)

STDOUT, STDERR = 1, 2


class LineEscaper:
    """Escapes lines that begin like events (events.escaped), in output that comes in pieces. Pure.

    The space goes directly before the prefix, not to the line's start, so that only a possible beginning of the prefix is held back.
    """

    def __init__(self) -> None:
        self._held = b""  # the first bytes of a possible prefix
        self._blank = True  # the line has only spaces so far
        self.in_line = False  # the line is not empty

    def feed(self, output: bytes) -> bytes:
        """Return the bytes to write for `output`."""
        data, self._held = self._held + output, b""
        head = b""
        if not self._blank:
            head, end, data = data.partition(b"\n")
            head += end
            if not end:
                self.in_line = True
                return head
        data = _EVENT_LIKE.sub(rb"\1 ", data)
        partial = data.rpartition(b"\n")[2]
        start = partial.lstrip(b" ")
        if start and len(start) < len(EVENT_PREFIX) and EVENT_PREFIX.startswith(start):
            self._held, data, start = start, data[: -len(start)], b""
        self._blank = not start
        written = head + data
        self.in_line = not written.endswith(b"\n") if written else self.in_line
        return written

    def release(self) -> bytes:
        """Return the bytes held back."""
        held, self._held = self._held, b""
        self._blank, self.in_line = self._blank and not held, self.in_line or bool(held)
        return held

    def end_line(self) -> bytes:
        """Return the bytes that end the partial line."""
        rest = self.release()
        rest += b"\n" if self.in_line else b""
        self._blank, self.in_line = True, False
        return rest


class Output:
    """The stdout of a task: the program's output and the lines of events, in the order in which they were written.

    Before `attach` and after `detach` it writes at once. If stdout is a terminal, the program writes to it directly.
    """

    def __init__(self, on_event: Callable[[Event], None] = lambda _event: None) -> None:
        self.on_event = on_event
        self.on_output: Callable[[], None] = lambda: None  # called when the program has written
        self._is_terminal = os.isatty(STDOUT)
        self._stdout_pipe = None if self._is_terminal else _Pipe()
        self._events = _Pipe()
        self._stderr_sink = _Sink(STDERR) if not self._is_terminal and _is_separate_file(STDERR) else None
        self._stderr_pipe = _Pipe() if self._stderr_sink else None
        self._stdout_sink = _Sink(STDOUT)
        self._escaping = LineEscaper()
        self._partial = b""  # the incomplete line of an event
        self._loop: EventLoop | None = None
        self._reading = False
        self.tail = b""  # the attempt's last output; only stderr if that goes elsewhere

    # For the program

    @property
    def stdout(self) -> int | None:
        """The program's stdout; None for this process's own."""
        return self._stdout_pipe.writing if self._stdout_pipe else None

    @property
    def stderr(self) -> int | None:
        """The program's stderr; None for this process's own."""
        if self._stderr_pipe:
            return self._stderr_pipe.writing
        return self.stdout if not os.isatty(STDERR) else None

    @property
    def events(self) -> int:
        """The pipe for the training process's events, each a line of JSON."""
        return self._events.writing

    # For the reporter

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return self._is_terminal

    def write(self, text: str) -> None:
        """Write whole lines, after all that the program has written so far."""
        self._take(_MAX_QUEUED)
        self._stdout_sink.add(self._escaping.end_line() + text.encode("utf-8", "backslashreplace"))

    def flush(self) -> None:
        """Write as much as possible without waiting; without a loop, which would write the rest, write all."""
        if self._loop is None:
            self._stdout_sink.drain()
        else:
            self._stdout_sink.push()
            self._register()

    # For the parent

    def attach(self, loop: EventLoop) -> None:
        """Pass output on while `loop` runs."""
        self._loop = loop
        self._register()

    def detach(self) -> None:
        """Write the rest, in bounded time, and leave the loop."""
        self.take()
        self._stdout_sink.add(self._escaping.release())
        if self._loop is not None:
            self._stop_reading()
            for sink in self._sinks():
                sink.stop_waiting(self._loop)
        self._loop = None
        for sink in self._sinks():
            sink.drain()

    def take(self) -> None:
        """Read all output and events that were written so far."""
        self._take(_MAX_QUEUED)
        self._take_events(math.inf)  # at most one pipe's content; it says how the task has ended

    def begin(self) -> None:
        """Forget the output of an earlier attempt."""
        self._partial = self.tail = b""

    # Inside

    def _sinks(self) -> list[_Sink]:
        return [self._stdout_sink, self._stderr_sink] if self._stderr_sink else [self._stdout_sink]

    def _pipes(self) -> list[_Pipe]:
        return [pipe for pipe in (self._stdout_pipe, self._stderr_pipe, self._events) if pipe]

    def _ready(self) -> None:
        self._take(_FULL)
        self._take_events()
        for sink in self._sinks():
            sink.push()
        self._register()

    def _take(self, most: int) -> None:
        """Read the program's output until `most` bytes wait to be written, or were read: none ever wait if the sink's reader is gone."""
        left = most
        while self._stdout_pipe and left > 0 and self._stdout_sink.waiting < most and (read := self._stdout_pipe.read()):
            left -= len(read)
            self._stdout_sink.add(self._escaping.feed(read))
            self.on_output()
            if self._stderr_pipe is None:
                self.tail = (self.tail + read)[-_TAIL:]
        left = most
        while (
            self._stderr_sink and self._stderr_pipe and left > 0 and self._stderr_sink.waiting < most and (read := self._stderr_pipe.read())
        ):
            left -= len(read)
            self._stderr_sink.add(read)
            self.on_output()
            self.tail = (self.tail + read)[-_TAIL:]

    def _take_events(self, most: float = _MAX_QUEUED) -> None:
        while self._stdout_sink.waiting < most and (read := self._events.read()):
            self._take(_MAX_QUEUED)  # output that was printed before an event comes before it
            *lines, partial = (self._partial + read).split(b"\n")
            self._partial = partial if len(partial) < _MAX_EVENT else b""
            for line in lines:
                if event := parse(line.decode("utf-8", "replace")):
                    self.on_event(event)

    def _register(self) -> None:
        """Register for writing if bytes wait, and for reading unless too many do."""
        if self._loop is None:
            return
        waiting = max(sink.waiting for sink in self._sinks())
        for sink in self._sinks():
            sink.wait(self._loop, self._ready)
        if waiting >= _FULL:
            self._stop_reading()
        elif not self._reading:
            self._reading = True
            for pipe in self._pipes():
                self._loop.on_ready(pipe.reading, selectors.EVENT_READ, self._ready)

    def _stop_reading(self) -> None:
        if self._reading and self._loop is not None:
            for pipe in self._pipes():
                self._loop.forget(pipe.reading)
        self._reading = False


class _Pipe:
    """A pipe whose ends stay open: a process that a program leaves behind can still write to it, and does not delay the end."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)

    def read(self) -> bytes:
        """Return the available bytes."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self.reading, _READ)
        return b""


class _Sink:
    """The destination of output. Others may have the same open file, so it is not made non-blocking."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiting = bytearray()
        self._closed = False  # the reader is gone; the program continues
        self._lost, self._since = 0, b""  # lines lost to a full disk, and since when
        self._registered = False
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    @property
    def waiting(self) -> int:
        """Bytes that wait to be written."""
        return len(self._waiting)

    def add(self, output: bytes) -> None:
        """Queue bytes."""
        if not self._closed:
            self._waiting += output

    def push(self, timeout: float = 0.0) -> None:
        """Write until the queue is empty, or there has been no space for `timeout` seconds."""
        written = 0
        while written < len(self._waiting) and self._poll.poll(1000 * timeout):
            try:
                if self._lost:
                    note = b"\n%d lines could not be written here since %s\n" % (self._lost, self._since)
                    if os.write(self._fd, note) == len(note):
                        self._lost = 0
                # A writable pipe has space for PIPE_BUF bytes.
                written += os.write(self._fd, self._waiting[written : written + select.PIPE_BUF])
            except BlockingIOError:  # noqa: PERF203 - costs only before Python 3.11
                break
            except OSError as error:
                del error  # the reader is gone, or the disk is full
                mode = os.fstat(self._fd).st_mode
                self._closed = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
                if not self._lost:
                    self._since = time.strftime("%H:%M:%S UTC", time.gmtime()).encode()
                self._lost += self._waiting.count(b"\n", written)
                written = len(self._waiting)
        del self._waiting[:written]

    def drain(self) -> None:
        """Write the whole queue."""
        self.push(_STUCK_AFTER)

    def wait(self, loop: EventLoop, ready: Callable[[], None]) -> None:
        """If bytes wait, call `ready` once there is space."""
        if not self._waiting:
            self.stop_waiting(loop)
        elif not self._registered:
            loop.on_ready(self._fd, selectors.EVENT_WRITE, ready)
            self._registered = True

    def stop_waiting(self, loop: EventLoop) -> None:
        """Stop waiting for space."""
        if self._registered:
            loop.forget(self._fd)
        self._registered = False


def _is_separate_file(fd: int) -> bool:
    """Return whether stderr is a file, or a device such as /dev/null, apart from stdout.

    If both are pipes, the program's stderr goes to stdout: an engine that reads two pipes could put an event into a long line of the other.
    """
    file, out = os.fstat(fd), os.fstat(STDOUT)
    apart = stat.S_ISREG(file.st_mode) or (stat.S_ISCHR(file.st_mode) and not os.isatty(fd))
    return apart and (file.st_dev, file.st_ino) != (out.st_dev, out.st_ino)
