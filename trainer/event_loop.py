"""An event loop in one thread, for signals, sockets and pipes, timers, and callbacks from other threads.

It sleeps in one `select` until the next timer is due; nothing is polled.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import selectors
import signal
import socket
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from typing import Self

Callback = Callable[[], None]

_MAX_SLEEP = 3600.0  # seconds; epoll takes at most 2**31 ms, 24.8 days


class Timer:
    """A scheduled call."""

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Drop the call. Harmless if it has already been made."""
        self.callback = None


class EventLoop:
    """Runs callbacks in the thread that calls `run`. Only `call_from_thread` may be called from other threads.

    A context manager: it restores the handlers of the signals that it was asked to handle.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._calls: deque[Callback] = deque()
        self._signals: dict[int, Callback] = {}
        self._previous_handlers: dict[int, object] = {}
        self._wake_read, self._wake_write = socket.socketpair()
        self._running = False

    def __enter__(self) -> Self:
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._previous_wakeup_fd = signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        self.on_ready(self._wake_read, selectors.EVENT_READ, self._on_wakeup)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # signal.signal returned it
        signal.set_wakeup_fd(self._previous_wakeup_fd)
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()

    def on_signal(self, number: int, callback: Callback) -> None:
        """Call `callback` in the loop, not in a signal handler, each time the signal `number` arrives."""
        self._signals[number] = callback
        self._previous_handlers[number] = signal.signal(number, lambda _number, _frame: None)

    def on_ready(self, file: socket.socket | int, events: int, callback: Callback) -> None:
        """Call `callback` whenever `file` is ready for `events`, EVENT_READ or EVENT_WRITE of `selectors`."""
        self._selector.register(file, events, callback)

    def forget(self, file: socket.socket | int) -> None:
        """Stop watching `file`. Call it before the file is closed."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(file)

    def now(self) -> float:
        """Return the time in seconds, by the clock of the timers."""
        return time.monotonic()

    def call_later(self, delay: float, callback: Callback) -> Timer:
        """Call `callback` once, `delay` seconds from now."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (self.now() + delay, next(self._order), timer))
        return timer

    def call_from_thread(self, callback: Callback) -> None:
        """Call `callback` soon, in the loop's thread."""
        self._calls.append(callback)
        with contextlib.suppress(OSError):  # full: the loop wakes anyway; closed: the loop has ended
            self._wake_write.send(b"\0")

    def stop(self) -> None:
        """Make `run` return after the callback that is running."""
        self._running = False

    def run(self) -> None:
        """Wait for events and call their callbacks until `stop`."""
        self._running = True
        while self._running:
            self._dispatch()
            self._run_due()

    def _dispatch(self) -> None:
        for key, _ in self._selector.select(self._until_next()):
            if self._running and key.fd in self._selector.get_map():  # an earlier callback may have forgotten it
                key.data()

    def _until_next(self) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return min(max(0.0, self._timers[0][0] - self.now()), _MAX_SLEEP) if self._timers else None

    def _run_due(self) -> None:
        now = self.now()
        while self._running and self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()

    def _on_wakeup(self) -> None:
        numbers = b""
        with contextlib.suppress(BlockingIOError):
            while chunk := self._wake_read.recv(4096):
                numbers += chunk
        for number in numbers:
            if self._running and number in self._signals:
                self._signals[number]()
        while self._running and self._calls:
            self._calls.popleft()()
