"""Advisory locks (flock) on files, which the kernel releases when the holder ends. One keeps a run to one supervisor.

A lock belongs to the open file. The process that starts a supervisor takes the lock and passes the open file on, so the lock is
never free in between.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from launcher.runs import process_identity
from launcher.runs.process_identity import Identity

_POLL_INTERVAL = 0.05


def acquire(path: Path, *, timeout: float = 0.0) -> int | None:
    """Return a file descriptor that holds the lock, or None if another process holds it for all of `timeout` seconds.

    Closing the descriptor releases the lock. Raises OSError if the file cannot be opened.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                return None
            time.sleep(_POLL_INTERVAL)
        except BaseException:
            os.close(fd)
            raise
        else:
            return fd


@contextlib.contextmanager
def exclusive(path: Path, *, timeout: float) -> Iterator[bool]:
    """Hold the lock for a `with` block and remove its file afterwards; False if another process holds it for all of `timeout` seconds.

    Raises OSError if the file cannot be opened.
    """
    deadline = time.monotonic() + timeout
    while (fd := acquire(path, timeout=max(0.0, deadline - time.monotonic()))) is not None and not _is_same_file(path, fd):
        os.close(fd)  # the previous holder has removed this file: try again with the new one
    try:
        yield fd is not None
    finally:
        if fd is not None:
            path.unlink(missing_ok=True)
            os.close(fd)


def _is_same_file(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


class HeldLock:
    """A lock that this process holds; its file disappears if the run's directory is removed."""

    def __init__(self, path: Path) -> None:
        """Remember the file's identity. Raises OSError."""
        self._path, self._stat = path, path.stat()

    def lost(self) -> bool:
        """Return whether the file is gone or was replaced. A file that cannot be examined is not lost."""
        try:
            return not os.path.samestat(self._path.stat(), self._stat)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False


def held(path: Path) -> bool:
    """Return whether a process holds the lock now. A file that is missing or cannot be read is not locked. Raises OSError without locks, such as ENOLCK."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)
    return False


def wait_released(path: Path, *, timeout: float, holder: Identity | None = None) -> bool:
    """Wait until no process holds the lock, or until `holder` has ended; False if that takes more than `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while held(path) and (holder is None or process_identity.alive(holder)):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_INTERVAL)
    return True
