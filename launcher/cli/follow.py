"""Follow a run in the foreground: lines and status to a view, Ctrl-C to the backend, until the run has ended.

If the launcher leaves in any way, it stops the run first, unless its cluster cannot be reached. If it is killed, the supervisor of a local or
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
# After a run has ended its last lines are read, however many there are; a reader that brings none for so long is left.
LAST_LINES_TIMEOUT = 60.0

STOPPING = "stopping: {stop_description}; press Ctrl-C again to stop at once"
STOPPING_NOW = "stopping at once"

_END = object()


class View(Protocol):
    """The display of a run in the foreground. Entered while the run is followed, as a context manager."""

    def event(self, event: Event) -> None:
        """Show a progress event."""

    def output(self, line: LogLine) -> None:
        """Show a line that a task's program wrote."""

    def status(self, status: RunStatus) -> None:
        """Show how the run is now."""

    def say(self, message: str) -> None:
        """Show a line of the launcher's own."""


def follow(
    backend: Backend, name: str, tasks: list[str], view: View, interrupts: Interrupts, *, since: float, stop_description: str
) -> RunStatus:
    """Return the run's last status once it has ended and every line is shown. `stop_description` says what a stop does (stopping.py)."""
    try:
        return _follow(
            backend, name, view, Stopper(backend, name, view, interrupts, stop_description), LogPump(backend, name, tasks, since)
        )
    except RunUnreachableError:
        raise  # nor could it be stopped
    except BaseException:
        # The terminal is gone, the pipe is closed, or this code has an error: nobody watches any more.
        backend.stop(name)
        raise


def _follow(backend: Backend, name: str, view: View, stopper: "Stopper", pump: "LogPump") -> RunStatus:
    next_status = over_since = 0.0
    while True:
        stopper.check()
        for line in pump.take(0.1) if not pump.ended else _nothing():
            _show(line, view)
            over_since = 0.0
        now = time.monotonic()
        if now < next_status and not pump.ended:
            continue
        next_status = now + STATUS_INTERVAL
        # Asked before the status: while something stops the run, the status is not its last.
        stopping = stopper.busy()
        status = backend.status(name)
        view.status(status)
        for note in backend.reconcile(name) if isinstance(backend, Reconciles) and not stopping else ():
            view.event({"event": "notice", "time": round(time.time(), 3), "task": "launcher", "message": note})
        if status.state not in ENDED or stopping or stopper.busy():
            over_since = 0.0
            continue
        over_since = over_since or now
        late = now - over_since > LAST_LINES_TIMEOUT
        if late and not pump.ended:
            view.say(
                f"lines may be missing here: none came for {LAST_LINES_TIMEOUT:.0f} s after the run's end; `launcher logs {name}` reads them"
            )
        if late or pump.ended:
            return status


def _nothing() -> tuple[LogLine, ...]:
    time.sleep(0.1)
    return ()


def _show(line: LogLine, view: View) -> None:
    event = event_in(line.text)
    if event is None:
        view.output(line)
    else:
        view.event(event)


class Stopper:
    """Turns the first signal into a graceful stop and the second into one at once, each on a thread of its own."""

    def __init__(self, backend: Backend, name: str, view: View, interrupts: Interrupts, stop_description: str) -> None:
        self._backend, self._name, self._view, self._interrupts = backend, name, view, interrupts
        self._says = (STOPPING.format(stop_description=stop_description), STOPPING_NOW)
        self._threads: list[threading.Thread] = []
        self._errors: list[Exception] = []
        self._messages: list[str] = []  # by the threads, for the one that shows it

    def check(self) -> None:
        """Start what the signals so far ask for. Raises what stopping raised."""
        while self._messages:
            self._view.say(self._messages.pop(0))
        if self._errors:
            raise self._errors[0]
        stage = len(self._threads)
        if stage >= min(self._interrupts.count, 2):
            return
        self._view.say(self._says[stage])
        thread = threading.Thread(target=self._stop, kwargs={"now": stage == 1}, name="stop", daemon=True)
        self._threads.append(thread)
        thread.start()

    def busy(self) -> bool:
        """Return whether something of the run may still be there."""
        return any(thread.is_alive() for thread in self._threads)

    def _stop(self, *, now: bool) -> None:
        try:
            self._backend.stop(self._name, now=now, report=self._messages.append)
        except Exception as error:  # noqa: BLE001  raised by check, on the thread that follows
            self._errors.append(error)


class LogPump:
    """Follows the lines of all tasks of a run until the run has ended, on a thread of its own: the one that shows them never waits for long."""

    def __init__(self, backend: Backend, name: str, tasks: list[str], since: float) -> None:
        self.ended = False
        # Bounded: a program that writes faster than the terminal takes it must not fill the memory.
        self._lines: queue.Queue[object] = queue.Queue(maxsize=10_000)
        self._thread = threading.Thread(target=self._read, args=(backend, name, tasks, since), name="logs", daemon=True)
        self._thread.start()

    def _read(self, backend: Backend, name: str, tasks: list[str], since: float) -> None:
        try:
            for line in backend.logs(name, tasks=tasks, follow=True, since=since, tail=None):
                self._lines.put(line)
            self._lines.put(_END)
        except Exception as error:  # noqa: BLE001  carried to the thread that takes the lines, which raises it
            self._lines.put(error)

    def take(self, seconds: float, most: int = 1000) -> Iterator[LogLine]:
        """Yield the lines there are, waiting up to `seconds` for the first. Raises what reading them raised."""
        for position in range(most):
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
