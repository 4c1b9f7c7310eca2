"""Detects a training process that has ended except for a thread that writes to a dead volume: no signal ends it, and it cannot be reaped."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainer.child import Child
from trainer.event_loop import EventLoop
from trainer.exit_codes import ExitCode
from trainer.process_group import stat_fields

_POLL_INTERVAL = 0.5  # seconds
_CONFIRMATIONS = 4  # in a row: threads end one after the other, and a live one may wait for a disk now and then
_MAX_POLLS = 1200  # polls before a process that is to be restarted is abandoned: the volume may answer again
_FINAL = frozenset({ExitCode.DONE, ExitCode.FINAL_FAILURE})


@dataclass(frozen=True)
class UninterruptibleExit:
    """Reports such a process, and calls `ended(code)` if no attempt follows; else, after ten minutes, `abandon(pid)`.

    Another attempt would wait for the same volume, and the process keeps a server's port. None follows a final exit code, nor once the task is
    asked to stop (`stopping()`).
    """

    child: Child
    loop: EventLoop
    report: Callable[..., None]
    stopping: Callable[[], bool]
    ended: Callable[[int], None]
    abandon: Callable[[int], None]

    def watch(self) -> None:
        """Watch the current process of `child` until it is reaped."""
        if self.child.pid is not None:
            self._poll_later(self.child.pid, 0)

    def _poll_later(self, pid: int, polls: int) -> None:
        self.loop.call_later(_POLL_INTERVAL, lambda: self._poll(pid, polls))

    def _poll(self, pid: int, polls: int) -> None:
        """Poll the process; the last `polls` in a row have found it dead."""
        if self.child.pid != pid:
            return
        code = _code_of_dead_leader(pid)
        if code is None or polls + 1 < _CONFIRMATIONS:
            self._poll_later(pid, 0 if code is None else polls + 1)
            return
        if polls + 1 == _CONFIRMATIONS:
            self.report(
                "notice", message=f"process {pid} has ended, except for a write to a volume that does not answer, which no signal ends"
            )
        if self.stopping() or code in _FINAL:
            self.child.pid = None
            self.ended(code)
        elif polls < _MAX_POLLS:
            self._poll_later(pid, polls + 1)
        else:
            self.abandon(pid)


def _code_of_dead_leader(pid: int) -> int | None:
    """Return the exit code of a dead process, a signal as a negative number, if one of its threads is in state D; else None.

    Other remaining threads may free the memory of the process, or continue although the first one has ended.
    """
    try:
        fields = stat_fields(Path(f"/proc/{pid}/stat"))
        if fields[0] != "Z" or all(stat_fields(thread / "stat")[0] != "D" for thread in Path(f"/proc/{pid}/task").iterdir()):
            return None
    except OSError:
        return None
    return os.waitstatus_to_exitcode(int(fields[49]))  # the exit status
