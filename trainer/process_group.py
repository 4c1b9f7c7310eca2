"""Starts a process in a process group of its own, reaps it, and kills the rest of its group."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer import parent_death

# Before Python 3.11 only preexec_fn leaves the program in its session, where it may read from the terminal.
_OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}


def spawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    handles_parent_death: bool,
    stdout: int | None = None,
    stderr: int | None = None,
    pass_fds: tuple[int, ...] = (),
) -> int:
    """Start `command` as the leader of a new process group and return its pid; it dies with this process.

    `handles_parent_death`: the command calls parent_death.die_with_parent itself; other programs are wrapped for it.
    Standard input is this process's own; so are output and error if they are None.
    """
    pipe = _parent_pipe() if parent_death.needs_pipe() else None
    process = subprocess.Popen(
        command if handles_parent_death else parent_death.wrapped(list(command)),
        env={**environment, **parent_death.child_environment(pipe)},
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds if pipe is None else (*pass_fds, pipe),
        **_OWN_GROUP,
    )
    if pipe is not None:
        os.close(pipe)
    # Only `reap` waits for children: the object must not, nor warn that the child still runs.
    process.returncode = 0
    return process.pid


def _parent_pipe() -> int:
    reading, writing = os.pipe()  # only this process has `writing`, and keeps it open until it ends
    os.set_inheritable(writing, False)
    return reading


def reap(child: int | None) -> int | None:
    """Take every child of this process that has ended from the process table; return how `child` ended, if it did.

    Process 1 of a container also adopts other processes. A negative number is a signal, as in `subprocess`. The rest
    of the child's process group is killed.
    """
    code = None
    while True:
        try:
            if hasattr(os, "waitid"):
                # Before reaping: while the dead leader is in the table, its group's number cannot be reused.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is not None and ended.si_pid == child:
                    kill_group(ended.si_pid)
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == child:
            kill_group(pid)
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def kill_group(child: int) -> None:
    """Kill the child's process group. Harmless if it is empty."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: no permission for the dead
        os.killpg(child, signal.SIGKILL)


# States in /proc/PID/stat of processes that do not run, nor will by themselves (proc_pid_stat(5)).
DEAD, SUSPENDED = frozenset("ZXx"), frozenset("Tt")


def stat_fields(stat: Path) -> list[str]:
    """Return the fields after the name in a file of proc_pid_stat(5), the state first. The name may contain anything, also brackets."""
    return stat.read_text(errors="replace").rpartition(")")[2].split()


def process_stat(pid: int) -> tuple[str, str]:
    """Return the state and the start time of a process; X if it is gone, R if the system has no /proc."""
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except OSError:
            return "X", ""
        return "R", ""
    try:
        fields = stat_fields(Path(f"/proc/{pid}/stat"))
    except OSError:
        return "X", ""
    return fields[0], fields[19]


def is_dead(pid: int) -> bool:
    """Return whether a process has ended."""
    return process_stat(pid)[0] in DEAD


def is_suspended(pid: int) -> bool:
    """Return whether a process is suspended by a signal (SIGSTOP, SIGTSTP) or a debugger."""
    return process_stat(pid)[0] in SUSPENDED


def missing_program(command: Sequence[str]) -> str | None:
    """Return why `command` cannot be run, None if its program exists and is executable."""
    if shutil.which(command[0]):
        return None
    what = "is not executable" if Path(command[0]).is_file() else "was not found"
    return f"the program {command[0]!r} {what}; give a path, or a name that is in a directory of PATH"
