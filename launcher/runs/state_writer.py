"""Writes the supervisor's state, often enough and not more often, and its own log."""

import contextlib
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path

from launcher.runs import state_file
from launcher.runs.log_files import LineWriter
from launcher.runs.state_file import Snapshot

# Seconds between two writes: a state that changed is written at once, mere progress a few times a second.
_CHANGE = 0.02
_PROGRESS = 0.2
_RETRY_INTERVAL = 2.0
_LAST_TRIES = 5.0
# Bytes kept for the last state, which is to be written on a full disk too: a little more than the state of a large run.
_RESERVE = 256 * 1024
_STDOUT = 1


class StateWriter:
    """The state file of a run. `due` is when it is to be written next, of `monotonic`; None when it is up to date."""

    def __init__(self, path: Path, snapshot: Callable[[], Snapshot], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.due: float | None = None
        self._path = path
        self._snapshot = snapshot
        self._written = 0.0
        self._reserve = path.with_name("reserve")
        self._reserves = False
        self._failing_since: float | None = None
        self._disabled = False

    def disable(self) -> None:
        """Write no more: the directory was removed, and one in its place is another run's."""
        self._disabled, self.due = True, None

    def reserve(self) -> None:
        """Keep space for the last state. Raises OSError when there is none."""
        self._reserves = True
        try:
            self._fill_reserve()
        except OSError:
            with contextlib.suppress(OSError):
                self._reserve.unlink()
            raise

    def _fill_reserve(self) -> None:
        """Keep as much of the space as there is. Raises OSError if that is not all of it."""
        with self._reserve.open("ab", buffering=0) as file:
            # Not zeros: a file system that compresses would not keep space for those.
            left = os.urandom(max(0, _RESERVE - file.tell()))
            while left:
                left = left[file.write(left) :]

    def _keep_reserve(self) -> bool:
        """Keep the space again where it was used, as much of it as is free; return whether all of it is there."""
        if self._reserves:
            try:
                self._fill_reserve()
            except OSError:
                return False
        return True

    def changed(self, *, at_once: bool = True) -> None:
        """Note that there is something to write."""
        due = max(self._monotonic(), self._written + (_CHANGE if at_once else _PROGRESS))
        self.due = due if self.due is None else min(self.due, due)

    def save_if_due(self) -> bool:
        """Write what has changed, when it is time; return whether it was written."""
        return self.due is not None and not self._disabled and self._monotonic() >= self.due and self.save()

    def save(self) -> bool:
        """Write now, on a full disk into the space kept for the last state; False, and another try later, when the disk does not take it."""
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
        self.due = None if self._keep_reserve() else self._written + _RETRY_INTERVAL
        return True

    def _note_failure(self, error: OSError) -> None:
        """Log the first failure in a row."""
        if self._failing_since is None:
            self._failing_since = self._written
            log_message(f"the state could not be written: {error.strerror}; it is tried again")

    def _save_in_reserve(self, snapshot: Snapshot) -> bool:
        """Write in the space kept for the last state, and keep that again: the state before gives its own back."""
        try:
            self._reserve.unlink()
            state_file.write(self._path, snapshot)
        except OSError:
            return False
        finally:
            self._keep_reserve()
        return True

    def save_final(self) -> None:
        """Write now, into the space kept for it, and try for some seconds: there is no later write."""
        if self._disabled:
            return
        self._reserves = False
        with contextlib.suppress(OSError):
            self._reserve.unlink()
        deadline = self._monotonic() + _LAST_TRIES
        while not self.save() and self._monotonic() < deadline:
            time.sleep(_PROGRESS)


@functools.cache
def _own_log() -> LineWriter:
    return LineWriter(_STDOUT)


def log_message(text: str) -> None:
    """Write a line to the supervisor's own log; a full disk loses it, and is told of when there is room again."""
    _own_log().write([text.encode(errors="backslashreplace")], time.time())
