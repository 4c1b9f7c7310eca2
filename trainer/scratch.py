"""A task's own directory for what is needed while it runs, below the system's temporary directory.

A killed task leaves its directory behind; the next task that starts on the machine removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "trainer-"
# A task's process holds a lock on this file until it ends. A directory without the file is not ours, whatever its name.
_LOCK = ".held-by-a-trainer"


@contextlib.contextmanager
def directory() -> Iterator[Path | None]:
    """Create a directory of this process's own for a `with` block; None if that fails. Removes those of dead processes."""
    with contextlib.suppress(OSError):
        _remove_abandoned(Path(tempfile.gettempdir()))
    path, lock = None, -1
    with contextlib.suppress(OSError):
        path, lock = _create()
    try:
        yield path
    finally:
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _create() -> tuple[Path, int]:
    """Create a directory; return it and its open lock file. Raises OSError."""
    while True:
        path, lock = Path(tempfile.mkdtemp(prefix=_PREFIX)), -1
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)  # another start may have locked it first, and removes it
        except OSError:
            shutil.rmtree(path, ignore_errors=True)
            if lock >= 0:
                os.close(lock)
            raise
        if path.exists():
            return path, lock
        os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # another user's, or just removed
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
            finally:
                os.close(lock)
