"""Notices a training process that has ended but for a thread that writes to a volume that does not answer: no signal ends it, and nobody can reap it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainer.child import Child
from trainer.event_loop import EventLoop
from trainer.exit_codes import ExitCode

_POLL_INTERVAL = 0.5  # seconds
_CONFIRMATIONS = 4  # in a row: threads end one after the other, and one that goes on may wait for a disk now and then
_MAX_POLLS = 1200  # polls before a process is given up that another was to follow: the volume may answer again
_FINAL = frozenset({ExitCode.DONE, ExitCode.WRONG_CONFIGURATION})


@dataclass(frozen=True)
class Unreaped:
    """Reports such a process, and calls `ended(code)` where no attempt follows; else, after ten minutes, `abandon(pid)`.

    A next attempt would wait for the same volume, and a server's port stays with the process.
    """

    child: Child
    loop: EventLoop
    report: Callable[..., None]
    ended: Callable[[int], None]
    abandon: Callable[[int], None]

    def watch(self, stopping: Callable[[], bool]) -> None:
        """Watch the process that `child` has now until it is reaped. `stopping` says whether the task is asked to stop."""
        if self.child.pid is not None:
            self._poll_later(self.child.pid, 0, stopping)

    def _poll_later(self, pid: int, seen: int, stopping: Callable[[], bool]) -> None:
        self.loop.call_later(_POLL_INTERVAL, lambda: self._poll(pid, seen, stopping))

    def _poll(self, pid: int, seen: int, stopping: Callable[[], bool]) -> None:
        if self.child.pid != pid:
            return
        code = _code_of_dead_leader(pid)
        if code is None or seen + 1 < _CONFIRMATIONS:
            self._poll_later(pid, 0 if code is None else seen + 1, stopping)
            return
        if seen + 1 == _CONFIRMATIONS:
            self.report("notice", message=f"process {pid} has ended, but for a write to a volume that does not answer: no signal ends that")
        if stopping() or code in _FINAL:
            self.child.pid = None
            self.ended(code)
        elif seen < _MAX_POLLS:
            self._poll_later(pid, seen + 1, stopping)
        else:
            self.abandon(pid)


def _code_of_dead_leader(pid: int) -> int | None:
    """Return how a process has ended, a signal as a negative number, if a thread is left that no signal ends (state D); else None.

    Threads that are left may also free the memory of the process, or go on where the first one alone has ended.
    """
    try:
        fields = _fields(Path(f"/proc/{pid}/stat"))
        if fields[0] != "Z" or all(_fields(thread / "stat")[0] != "D" for thread in Path(f"/proc/{pid}/task").iterdir()):
            return None
    except OSError:
        return None
    return os.waitstatus_to_exitcode(int(fields[49]))


def _fields(stat: Path) -> list[str]:
    """Return what follows the name in proc_pid_stat(5): the state first, the exit status at 49."""
    return stat.read_text(errors="replace").rpartition(")")[2].split()
