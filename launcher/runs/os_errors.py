"""Errors of the operating system, each with a remedy: one table."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from launcher.errors import LauncherError

_REMEDY: dict[int, str] = {
    errno.ENOSPC: "free some space on that disk, or choose another directory for runs: --runs DIR",
    errno.EDQUOT: "free some of your quota on that disk, or choose another directory for runs: --runs DIR",
    errno.EROFS: "choose a directory for runs that can be written: --runs DIR",
    errno.EACCES: "get write permission there, or choose another directory for runs: --runs DIR",
    errno.EPERM: "get write permission there, or choose another directory for runs: --runs DIR",
    errno.ENOTDIR: "remove the file that stands in the way, or choose another directory for runs: --runs DIR",
    errno.EEXIST: "remove the file that stands in the way, or choose another directory for runs: --runs DIR",
    errno.EAGAIN: "ask for fewer tasks, end other programs, or raise the limit of processes (ulimit -u)",
    errno.ENOMEM: "ask for fewer tasks, or end other programs that use memory",
    errno.EMFILE: "ask for fewer tasks, or raise the limit of open files (ulimit -n)",
    errno.ENFILE: "ask for fewer tasks, or end other programs that hold files open",
    errno.ENOENT: "check that the program and the directory it starts in are there",
    errno.E2BIG: "ask for fewer tasks, or put less into env",
}
# Errors of a path that needs a directory where a file is, as its last part or before.
_IN_THE_WAY = frozenset({errno.ENOTDIR, errno.EEXIST})


def explain(error: OSError, action: str) -> LauncherError:
    """Return the LauncherError for an OSError during `action`, with its file."""
    if error.errno in _IN_THE_WAY and error.filename is not None and (file := _file_in_the_way(Path(os.fsdecode(error.filename)))):
        below = f", and {error.filename!s} would be below it" if str(file) != str(error.filename) else ""
        return LauncherError(f"{action} failed: {file} is a file, not a directory{below}", "name a directory for the runs: --runs DIR")
    about = f" {error.filename!s}:" if error.filename is not None else ""
    reason = error.strerror or str(error) or type(error).__name__
    return LauncherError(f"{action} failed:{about} {reason}", _REMEDY.get(error.errno or 0, ""))


@contextlib.contextmanager
def translate_os_errors(action: str) -> Iterator[None]:
    """Turn an OSError in a `with` block, which does `action`, into a LauncherError."""
    try:
        yield
    except OSError as error:
        raise explain(error, action) from error


def _file_in_the_way(path: Path) -> Path | None:
    """Return the file that is where a path needs a directory; None if there is none."""
    existing = next((part for part in (path, *path.parents) if os.path.lexists(part)), None)
    return existing if existing is not None and not existing.is_dir() else None
