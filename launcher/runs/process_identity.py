"""Processes told apart for certain, and sessions of them ended as a whole.

A process id is used again once its process is gone, so a process is its id and when it was born: on Linux the boot and
the start time in clock ticks (proc(5), field 22), elsewhere what `ps` calls lstart. Every task leads a
session (setsid) of its own: whatever it starts stays in it, and the kernel does not give its number to another process
as long as one member is left.
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
    """Return /proc/<pid>/stat from its third field (the state) on; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    return text[text.rfind(")") + 2 :].split()


def identify(pid: int) -> Identity | None:
    """Return the process that has this id now; None if there is none, or only its exit code is left."""
    if _LINUX:
        fields = _stat(pid)
        return None if fields is None or fields[0] in "ZX" else Identity(pid, f"{_boot()}:{fields[19]}")
    listed = _ps("-o", "stat=,lstart=", "-p", str(pid))
    state, _, born = (listed[0].strip() if listed else "").partition(" ")
    return None if not born or state.startswith("Z") else Identity(pid, born.strip())


@functools.cache
def pid_namespace() -> str:
    """Return the space in which process ids are unique: this boot of the machine, and this PID namespace, such as a container's.

    Empty off Linux, which has no such namespaces.
    """
    with contextlib.suppress(OSError):
        return f"{_boot()}:{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - no path: `pid:[4026531836]`
    return ""


def alive(identity: Identity) -> bool:
    """Return whether this very process still runs."""
    return identify(identity.pid) == identity


def session(leader: int) -> list[int]:
    """Return the processes of the session that `leader` made, itself included; those that only wait to be reaped are not."""
    return [pid for pid in _running() if session_of(pid) == leader]


def belongs(pid: int, *, run_dir: str) -> bool:
    """Return whether a process was started for the run in `run_dir`, by its environment; True where that cannot be read."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return not _LINUX
    return b"RUN_DIR=" + os.fsencode(run_dir) in environment.split(b"\0")


def tasks_of(run_dir: str) -> list[int]:
    """Return the processes that any launcher has started as tasks of the run in `run_dir`; none off Linux."""
    run_dir_entry, started = b"RUN_DIR=" + os.fsencode(run_dir), b"TRAINER_LIFELINE="
    found = []
    for pid in _running() if _LINUX else ():
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if run_dir_entry in environment and any(entry.startswith(started) for entry in environment):
                found.append(pid)
    return found


def send(pid: int, number: int) -> bool:
    """Send a signal; False when the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def kill_session(leader: int) -> bool:
    """Kill (SIGKILL) every member of a session, also those that are forked meanwhile; False when some stay on."""
    deadline = time.monotonic() + _KILL_TIMEOUT
    while True:
        members = session(leader)
        if not members:
            return True
        for pid in members:
            with contextlib.suppress(PermissionError):
                send(pid, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)


def session_of(pid: int) -> int | None:
    """Return the session of a process, by its leader's id; None when there is no such process."""
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
