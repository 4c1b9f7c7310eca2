"""Follow a run in the foreground: lines and status go to a view, Ctrl-C to the backend, until the run has ended.

If the launcher exits for any reason, it first stops the run, unless its cluster cannot be reached. If it is killed, the supervisor of a local or
Docker run stops the run; on Kubernetes the run continues.
"""

import queue
import threading
import time
from collections.abc import Iterator
from typing import Protocol

from launcher.backend.model import Backend, Reconciles
from launcher.cli.interrupts import Interrupts
from launcher.cli.output_lines import event_in
from launcher.runs.status import ENDED, LogLine, RunStatus, RunUnreachableError
from trainer.events import Event

STATUS_INTERVAL = 0.25
# After a run's end, lines are read until they end or none has come for this many seconds.
LAST_LINES_TIMEOUT = 60.0

_STOPPING = "stopping: {stop_description}; press Ctrl-C again to stop at once"
_STOPPING_NOW = "stopping at once"

_END = object()


class View(Protocol):
    """The display of a run in the foreground."""

    def event(self, event: Event) -> None:
        """Show a progress event."""

    def output(self, line: LogLine) -> None:
        """Show a line that a task's program wrote."""

    def status(self, status: RunStatus) -> None:
        """Show the run's current status."""

    def say(self, message: str) -> None:
        """Show a line of the launcher's own."""


def follow(
    backend: Backend,
    name: str,
    tasks: list[str],
    view: View,
    interrupts: Interrupts,
    *,
    since: float,
    stop_description: str,
    logs_command: str,
) -> RunStatus:
    """Return the run's last status once it has ended and every line is shown.

    `stop_description` says what a stop does (stopping.py); `logs_command` shows all lines.
    """
    stopper = Stopper(backend, name, view, interrupts, stop_description)
    try:
        return _follow(backend, name, view, stopper, LogReader(backend, name, tasks, since), logs_command)
    except RunUnreachableError:
        raise  # it cannot be stopped either
    except BaseException:
        # The terminal is gone, the pipe is closed, or this code has an error: the user no longer sees the run.
        backend.stop(name)
        raise


def _follow(backend: Backend, name: str, view: View, stopper: "Stopper", reader: "LogReader", logs_command: str) -> RunStatus:
    next_status = ended_since = 0.0
    while True:
        stopper.check()
        for line in reader.take(0.1):
            _show(line, view)
            ended_since = 0.0
        now = time.monotonic()
        if now < next_status and not reader.ended:
            continue
        next_status = now + STATUS_INTERVAL
        # Read before the status: while a stop is in progress, the status is not final.
        stopping = stopper.busy()
        status = backend.status(name)
        view.status(status)
        for note in backend.reconcile(name) if isinstance(backend, Reconciles) and not stopping else ():
            view.event({"event": "notice", "time": round(time.time(), 3), "task": "launcher", "message": note})
        if status.state not in ENDED or stopping or stopper.busy():
            ended_since = 0.0
            continue
        ended_since = ended_since or now
        late = now - ended_since > LAST_LINES_TIMEOUT
        if late and not reader.ended:
            view.say(
                f"lines may be missing here: none came for {LAST_LINES_TIMEOUT:.0f} s after the run's end; `{logs_command}` shows them"
            )
        if late or reader.ended:
            return status


def _show(line: LogLine, view: View) -> None:
    event = event_in(line.text)
    if event is None:
        view.output(line)
    else:
        view.event(event)


class Stopper:
    """Stops the run gracefully on the first signal, and at once on the second, each on its own thread."""

    def __init__(self, backend: Backend, name: str, view: View, interrupts: Interrupts, stop_description: str) -> None:
        self._backend, self._name, self._view, self._interrupts = backend, name, view, interrupts
        self._announcements = (_STOPPING.format(stop_description=stop_description), _STOPPING_NOW)
        self._threads: list[threading.Thread] = []
        self._errors: list[Exception] = []
        self._messages: list[str] = []  # from the stop threads, for the main thread to show

    def check(self) -> None:
        """Start the stop that the signals so far ask for. Raises the error of an earlier stop."""
        while self._messages:
            self._view.say(self._messages.pop(0))
        if self._errors:
            raise self._errors[0]
        stage = len(self._threads)
        if stage >= min(self._interrupts.count, 2):
            return
        self._view.say(self._announcements[stage])
        thread = threading.Thread(target=self._stop, kwargs={"now": stage == 1}, name="stop", daemon=True)
        self._threads.append(thread)
        thread.start()

    def busy(self) -> bool:
        """Return whether a stop is in progress."""
        return any(thread.is_alive() for thread in self._threads)

    def _stop(self, *, now: bool) -> None:
        try:
            self._backend.stop(self._name, now=now, report=self._messages.append)
        except Exception as error:  # noqa: BLE001  raised by check, on the main thread
            self._errors.append(error)


class LogReader:
    """Reads the lines of all tasks until the run has ended, on its own thread, so that the main thread never waits for long."""

    def __init__(self, backend: Backend, name: str, tasks: list[str], since: float) -> None:
        self.ended = False
        # Bounded: a program that writes faster than the terminal must not fill the memory.
        self._lines: queue.Queue[object] = queue.Queue(maxsize=10_000)
        self._thread = threading.Thread(target=self._read, args=(backend, name, tasks, since), name="logs", daemon=True)
        self._thread.start()

    def _read(self, backend: Backend, name: str, tasks: list[str], since: float) -> None:
        try:
            for line in backend.logs(name, tasks=tasks, follow=True, since=since, tail=None):
                self._lines.put(line)
            self._lines.put(_END)
        except Exception as error:  # noqa: BLE001  raised by take, on the main thread
            self._lines.put(error)

    def take(self, seconds: float) -> Iterator[LogLine]:
        """Yield the available lines, at most 1,000, waiting up to `seconds` for the first. Raises the reader thread's error."""
        for position in range(1000):
            try:
                item = self._lines.get(timeout=seconds) if position == 0 else self._lines.get_nowait()
            except queue.Empty:
                return
            if isinstance(item, LogLine):
                yield item
                continue
            self.ended = True
            if isinstance(item, Exception):
                raise item
            return
