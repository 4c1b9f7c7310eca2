"""Free ports on this machine, held for as long as a run lasts without listening on them.

TensorFlow's gRPC server refuses SO_REUSEPORT but sets SO_REUSEADDR. On Linux two sockets that both set SO_REUSEADDR may be
bound to one port as long as neither listens, so ours keeps the port: the kernel gives it to no process that asks for any
port, binds without SO_REUSEADDR are refused, and connections out never use it. TensorFlow then binds it and listens.

BSD systems (macOS) refuse that. There ports come from below the range that the kernel gives out, and a lock file
for each keeps other runs of the same user off it.
"""

import contextlib
import errno
import os
import random
import socket
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from launcher.errors import LauncherError
from launcher.runs import locks

# Below both the IANA dynamic range (49152 and up: macOS) and Linux's (32768 and up).
_QUIET_RANGE = range(20_000, 32_000)
_REMEDY = "remove it, or set TMPDIR to a directory of your own"


# As many ports after a wanted one are tried as TensorBoard itself would try.
_PORTS_TRIED = 10


def is_free(host: str, port: int) -> bool:
    """Return whether a process could listen at this port now; 0 is any that is free."""
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return True
    except (OSError, TypeError):  # the latter for what cannot be a host's name
        return False


def next_free(host: str, first: int) -> int | None:
    """Return the first of some ports from `first` on at which a process could listen; None where there is none."""
    return next((port for port in range(first, min(first + _PORTS_TRIED, 65536)) if is_free(host, port)), None)


class PortReservation:
    """Ports that no other process gets. Close it, or leave its `with` block, to give them back."""

    def __init__(self, ports: tuple[int, ...], release: Callable[[], None]) -> None:
        self.ports = ports
        self._release = release

    def close(self) -> None:
        """Give the ports back."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def reserve(count: int) -> PortReservation:
    """Reserve `count` free ports. Raises LauncherError when there are not so many."""
    return reserve_by_binding(count) if sys.platform == "linux" else reserve_by_locking(count)


def reserve_by_binding(count: int) -> PortReservation:
    """Reserve ports by sockets that are bound and never listen. Linux only."""
    stack = contextlib.ExitStack()
    ports = []
    try:
        for _ in range(count):
            held = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # On every interface, where TensorFlow listens, so that no program on one of them stands in its way.
            held.bind(("0.0.0.0", 0))  # noqa: S104 - it never listens
            ports.append(held.getsockname()[1])
    except OSError as error:
        stack.close()
        raise _too_few(count, error) from error
    return PortReservation(tuple(ports), stack.close)


def reserve_by_locking(count: int, directory: Path | None = None) -> PortReservation:
    """Reserve ports by a lock file each, in a directory of this user's own. Raises LauncherError when it is not."""
    # One directory for all runs of a user.
    locks_directory = directory or Path(tempfile.gettempdir()) / f"launcher-ports-{os.getuid()}"
    _make_own(locks_directory)
    stack = contextlib.ExitStack()
    ports: list[int] = []
    candidates = random.sample(_QUIET_RANGE, len(_QUIET_RANGE))
    try:
        for port in candidates:
            if len(ports) == count:
                break
            fd = locks.acquire(locks_directory / str(port))
            if fd is None:
                continue
            if not _is_free(port):
                os.close(fd)
                continue
            stack.callback(os.close, fd)
            ports.append(port)
    except OSError as error:
        stack.close()
        raise _too_few(count, error) from error
    if len(ports) < count:
        stack.close()
        raise _too_few(count, OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)))
    return PortReservation(tuple(ports), stack.close)


def _make_own(directory: Path) -> None:
    """Make the directory; refuse one that another user has made: links in it would have us write files elsewhere."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise LauncherError(f"{directory} cannot be made: {error.strerror}", _REMEDY) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise LauncherError(f"{directory} is not a directory that only you can use", _REMEDY)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - it never listens
        except OSError:
            return False
    return True


def _too_few(count: int, error: OSError) -> LauncherError:
    return LauncherError(
        f"{count} free ports could not be reserved: {error.strerror}",
        "ask for fewer tasks, end other programs that hold ports, or raise the limit of open files (ulimit -n)",
    )
