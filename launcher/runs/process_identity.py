"""Identifies processes reliably although ids are reused, and kills whole sessions.

A process id is reused once its process is gone, so an identity is the id and the start time: on Linux the boot and
the start time in clock ticks (proc(5), field 22), elsewhere the lstart of `ps`. Every task leads a
session (setsid) of its own. Its children stay in the session, and the kernel does not reuse the session's id as long as one member is left.
"""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_KILL_TIMEOUT = 2.0  # seconds
_LINUX = sys.platform == "linux"


@dataclass(frozen=True)
class Identity:
    """One process of this machine since its boot."""

    pid: int
    born: str


@functools.cache
def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _stat(pid: int) -> list[str] | None:
    """Return /proc/<pid>/stat from its third field (the state) on; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    return text[text.rfind(")") + 2 :].split()


def identify(pid: int) -> Identity | None:
    """Return the process that has this id now; None if there is none, or only a zombie."""
    if _LINUX:
        fields = _stat(pid)
        return None if fields is None or fields[0] in "ZX" else Identity(pid, f"{_boot()}:{fields[19]}")
    listed = _ps("-o", "stat=,lstart=", "-p", str(pid))
    state, _, born = (listed[0].strip() if listed else "").partition(" ")
    return None if not born or state.startswith("Z") else Identity(pid, born.strip())


@functools.cache
def pid_namespace() -> str:
    """Return an id of the scope in which process ids are unique: this boot of the machine, and this PID namespace, such as a container's.

    Empty off Linux, which has no such namespaces.
    """
    with contextlib.suppress(OSError):
        return f"{_boot()}:{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - no path: `pid:[4026531836]`
    return ""


def alive(identity: Identity) -> bool:
    """Return whether exactly this process still runs."""
    return identify(identity.pid) == identity


def session_members(leader: int) -> list[int]:
    """Return the processes of the session that `leader` leads, itself included, without zombies."""
    return [pid for pid in _running() if session_of(pid) == leader]


def started_for(pid: int, *, run_dir: str) -> bool:
    """Return whether a process was started for the run in `run_dir`, by its environment; if that cannot be read, False on Linux, else True."""
    try:
        return b"RUN_DIR=" + os.fsencode(run_dir) in _environment(pid)
    except OSError:
        return not _LINUX


def task_pids(run_dir: str) -> list[int]:
    """Return the processes that any launcher has started as tasks of the run in `run_dir`; none off Linux."""
    run_dir_entry, task_prefix = b"RUN_DIR=" + os.fsencode(run_dir), b"TRAINER_LIFELINE="
    pids = []
    for pid in _running() if _LINUX else ():
        with contextlib.suppress(OSError):
            environment = _environment(pid)
            if run_dir_entry in environment and any(entry.startswith(task_prefix) for entry in environment):
                pids.append(pid)
    return pids


def _environment(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def send(pid: int, number: int) -> bool:
    """Send a signal; False if the process is gone. Raises PermissionError."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def kill_session(leader: int) -> None:
    """Kill (SIGKILL) every member of a session, also those that are forked meanwhile. Some may remain."""
    deadline = time.monotonic() + _KILL_TIMEOUT
    while (members := session_members(leader)) and time.monotonic() < deadline:
        for pid in members:
            with contextlib.suppress(PermissionError):
                send(pid, signal.SIGKILL)
        time.sleep(0.005)


def session_of(pid: int) -> int | None:
    """Return the id of a process's session, which is its leader's process id; None if there is no such process."""
    if _LINUX:
        fields = _stat(pid)
        return None if fields is None or fields[0] in "ZX" else int(fields[3])
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _running() -> Iterator[int]:
    if _LINUX:
        yield from (int(name) for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208 - names alone, and fast
        return
    for line in _ps("-A", "-o", "pid=,stat="):
        pid, _, state = line.strip().partition(" ")
        if pid.isdecimal() and not state.strip().startswith("Z"):
            yield int(pid)


def _ps(*arguments: str) -> list[str]:
    finished = subprocess.run(("ps", *arguments), capture_output=True, text=True, timeout=10, check=False)
    return finished.stdout.splitlines()
