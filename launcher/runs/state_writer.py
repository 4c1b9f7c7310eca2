"""Writes the supervisor's state file, at a limited rate and also on a full disk, and its own log."""

import contextlib
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path

from launcher.runs import state_file
from launcher.runs.log_files import LineWriter
from launcher.runs.state_file import Snapshot

# Seconds between two writes: a changed state is written at once, progress a few times a second.
_CHANGE_INTERVAL = 0.02
_PROGRESS_INTERVAL = 0.2
_RETRY_INTERVAL = 2.0
_FINAL_SAVE_TIMEOUT = 5.0
# Bytes reserved for the last state, so that it can be written on a full disk, too: a little more than the state of a large run.
_RESERVE_SIZE = 256 * 1024
_STDOUT = 1


class StateWriter:
    """The state file of a run. `due`: the time of `monotonic` at which to write it next; None if it is up to date."""

    def __init__(self, path: Path, snapshot: Callable[[], Snapshot], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.due: float | None = None
        self._path = path
        self._snapshot = snapshot
        self._written = 0.0
        self._reserve = path.with_name("reserve")
        self._keeps_reserve = False
        self._failing_since: float | None = None
        self._disabled = False

    def disable(self) -> None:
        """Write no more: the directory was removed, and a new one with its name is another run's."""
        self._disabled, self.due = True, None

    def reserve(self) -> None:
        """Reserve disk space for the last state. Raises OSError if there is not enough."""
        self._keeps_reserve = True
        try:
            self._fill_reserve()
        except OSError:
            with contextlib.suppress(OSError):
                self._reserve.unlink()
            raise

    def _fill_reserve(self) -> None:
        """Extend the reserve file to its full size, or as far as the disk allows. Raises OSError in the latter case."""
        with self._reserve.open("ab", buffering=0) as file:
            # Random bytes, since a file system that compresses would not allocate space for zeros.
            missing = os.urandom(max(0, _RESERVE_SIZE - file.tell()))
            while missing:
                missing = missing[file.write(missing) :]

    def _refill_reserve(self) -> bool:
        """Fill the reserve again after use, as far as the disk allows; return whether it is complete."""
        if self._keeps_reserve:
            try:
                self._fill_reserve()
            except OSError:
                return False
        return True

    def changed(self, *, at_once: bool = True) -> None:
        """Note that there is something to write."""
        if self._disabled:
            return
        due = max(self._monotonic(), self._written + (_CHANGE_INTERVAL if at_once else _PROGRESS_INTERVAL))
        self.due = due if self.due is None else min(self.due, due)

    def save_if_due(self) -> bool:
        """Write the state if it has changed and a write is due; return whether it was written."""
        return self.due is not None and not self._disabled and self._monotonic() >= self.due and self.save()

    def save(self) -> bool:
        """Write now, on a full disk into the reserved space; return False, and try again later, if neither succeeds."""
        self._written = self._monotonic()
        snapshot = self._snapshot()
        try:
            state_file.write(self._path, snapshot)
        except OSError as error:
            self._note_failure(error)
            saved = self._save_in_reserve(snapshot)
            self.due = self._written + _RETRY_INTERVAL
            return saved
        if self._failing_since is not None:
            log_message(f"the state can be written again, after {self._written - self._failing_since:.0f} s")
            self._failing_since = None
        self.due = None if self._refill_reserve() else self._written + _RETRY_INTERVAL
        return True

    def _note_failure(self, error: OSError) -> None:
        """Log the first failure in a row."""
        if self._failing_since is None:
            self._failing_since = self._written
            log_message(f"the state could not be written: {error.strerror}; it is tried again")

    def _save_in_reserve(self, snapshot: Snapshot) -> bool:
        """Write into the reserved space, and refill the reserve with the space of the previous state."""
        try:
            self._reserve.unlink()
            state_file.write(self._path, snapshot)
        except OSError:
            return False
        finally:
            self._refill_reserve()
        return True

    def save_final(self) -> None:
        """Write the last state, into the reserved space, and retry for some seconds: no later write follows."""
        if self._disabled:
            return
        self._keeps_reserve = False
        with contextlib.suppress(OSError):
            self._reserve.unlink()
        deadline = self._monotonic() + _FINAL_SAVE_TIMEOUT
        while not self.save() and self._monotonic() < deadline:
            time.sleep(_PROGRESS_INTERVAL)


@functools.cache
def _own_log() -> LineWriter:
    return LineWriter(_STDOUT)


def log_message(text: str) -> None:
    """Write a line to the supervisor's own log. A full disk loses it; once there is room, a note says so."""
    _own_log().write([text.encode(errors="backslashreplace")], time.time())
