"""What the operating system refuses, as an error with a remedy: one table."""

import errno
import os

from launcher.errors import LauncherError

_REMEDY: dict[int, str] = {
    errno.ENOSPC: "free some space on that disk, or choose another directory for runs",
    errno.EDQUOT: "free some of your quota on that disk, or choose another directory for runs",
    errno.EROFS: "choose a directory for runs that can be written",
    errno.EACCES: "give yourself the right to write there, or choose another directory for runs",
    errno.EPERM: "give yourself the right to write there, or choose another directory for runs",
    errno.ENOTDIR: "remove the file that stands in the way, or choose another directory for runs",
    errno.EEXIST: "remove the file that stands in the way, or choose another directory for runs",
    errno.EAGAIN: "ask for fewer tasks, end other programs, or raise the limit of processes (ulimit -u)",
    errno.ENOMEM: "ask for fewer tasks, or end other programs that use memory",
    errno.EMFILE: "ask for fewer tasks, or raise the limit of open files (ulimit -n)",
    errno.ENFILE: "ask for fewer tasks, or end other programs that hold files open",
    errno.ENOENT: "check that the program and the directory it starts in are there",
    errno.E2BIG: "ask for fewer tasks, or put less into env",
}


def explain(error: OSError, doing: str) -> LauncherError:
    """Return the error for what went wrong while `doing`, with the file it was about."""
    what = f" {error.filename!s}" if error.filename is not None else ""
    reason = error.strerror or os.strerror(error.errno or 0)
    return LauncherError(f"{doing} failed:{what}: {reason}" if what else f"{doing} failed: {reason}", _REMEDY.get(error.errno or 0, ""))
