"""A run's output lines, read by a thread so that the one who follows a run never waits for them."""

import queue
import threading
from collections.abc import Iterator

from launcher.backend.model import Backend
from launcher.runs.status import LogLine

_END = object()


class LogPump:
    """Follows the lines of all tasks of a run until the run has ended."""

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
