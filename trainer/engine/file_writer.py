"""Writes the files of a run, except checkpoints, in a thread of its own: a volume that is full, read-only or broken, or does not answer, never blocks training.

A write that fails is reported once, stays in memory and is tried again until it succeeds; of `replace`, only the newest content is kept.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trainer.engine.run_state import write_atomically
from trainer.events import Reporter

_RETRY_DELAY = 1.0  # seconds until failed writes are tried again
_MAX_PENDING = 64 * 2**20  # the most bytes to append that are held in memory


class FileWriter:
    """Writes files in order, each path by itself."""

    def __init__(self, report: Reporter) -> None:
        self._report = report
        self._changed = threading.Condition()
        self._pending: dict[Path, deque[Callable[[], None]]] = {}
        self._failing: set[Path] = set()
        self._pending_bytes = self._lost_bytes = 0
        threading.Thread(target=self._write_loop, name="files", daemon=True).start()

    def replace(self, path: Path, content: str) -> None:
        """Replace what is in a file, see write_atomically."""
        with self._changed:
            # A write that has begun is not cancelled.
            self._pending[path] = deque([lambda: write_atomically(path, content)])
            self._changed.notify_all()

    def append(self, path: Path, content: bytes) -> None:
        """Append to a file. Content beyond the limit of memory is lost, and reported."""
        rest = memoryview(content)

        def write() -> None:
            nonlocal rest
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as file:
                while rest:  # a disk may take a part
                    rest = rest[os.write(file.fileno(), rest) :]
            with self._changed:
                self._pending_bytes -= len(content)

        with self._changed:
            if self._pending_bytes + len(content) > _MAX_PENDING:
                self._lost_bytes += len(content)
                return
            self._pending_bytes += len(content)
            self.call(path, write)

    def call(self, path: Path, write: Callable[[], None]) -> None:
        """Call `write`, which writes `path`; again if it raises an error."""
        with self._changed:
            self._pending.setdefault(path, deque()).append(write)
            self._changed.notify_all()

    @property
    def is_idle(self) -> bool:
        """Whether everything is written."""
        return not self._pending

    @property
    def is_failing(self) -> bool:
        """Whether something could not be written, and is tried again."""
        return bool(self._failing)

    def wait(self, seconds: float, *, failed: bool = False) -> None:
        """Wait until everything is written; with `failed` also for writes that fail."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending.keys() - (set() if failed else self._failing), seconds)

    def close(self, seconds: float) -> None:
        """Wait until everything is written, for so long at most, and report what is not."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending, seconds)
            unwritten = sorted(str(path) for path in self._pending)
        if unwritten:
            self._report("notice", message=f"not written, and lost where the volume does not take it by the end: {', '.join(unwritten)}")
        if self._lost_bytes:
            self._report("notice", message=f"{self._lost_bytes:,} bytes of summaries are lost: they could not be written for too long")

    def _write_loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._pending))
                paths = list(self._pending)
            for path in paths:
                self._write(path)
            if self._failing:
                time.sleep(_RETRY_DELAY)

    def _write(self, path: Path) -> None:
        while writes := self._pending.get(path):
            try:
                writes[0]()
            except Exception as error:  # noqa: BLE001 - a volume's file system may raise any error
                self._fail(path, error)
                return
            with self._changed:
                writes.popleft()
                if not self._pending[path]:
                    del self._pending[path]
                self._failing.discard(path)
                self._changed.notify_all()

    def _fail(self, path: Path, error: Exception) -> None:
        cause = getattr(error, "strerror", None) or str(error) or repr(error)
        first = path not in self._failing
        with self._changed:
            self._failing.add(path)
            self._changed.notify_all()
        if first:
            with suppress(OSError):
                self._report("notice", message=f"{path} could not be written: {cause}; it is tried again")
