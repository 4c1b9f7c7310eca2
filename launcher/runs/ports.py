"""Free ports on this machine, held for as long as a run lasts without listening on them.

TensorFlow's gRPC server refuses SO_REUSEPORT but sets SO_REUSEADDR. On Linux two sockets that both set SO_REUSEADDR may be
bound to one port as long as neither listens, so our socket reserves the port: the kernel never assigns it to a process that asks for a
free port or connects out, and refuses binds without SO_REUSEADDR. TensorFlow then binds the port and listens.

BSD systems (macOS) refuse the second bind. There ports come from below the range from which the kernel assigns ports, and a lock file
for each keeps other runs of the same user from using it.
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
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import LauncherError
from launcher.runs import locks

# Below both the IANA dynamic range (49152 and up: macOS) and Linux's (32768 and up).
_PORT_RANGE = range(20_000, 32_000)
_REMEDY = "remove it, or set TMPDIR to a directory of your own"
_PORTS_TRIED = 10  # TensorBoard itself tries as many


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at this port. Raises OSError, and TypeError for a text that cannot be a host name."""
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def is_free(host: str, port: int) -> bool:
    """Return whether a process could listen at this port now; 0 stands for any free port."""
    try:
        with listen(host, port):
            return True
    except (OSError, TypeError):
        return False


def candidates(first: int) -> range:
    """Return the ports from `first` on, ten at most, of which the first free one is taken."""
    return range(first, min(first + _PORTS_TRIED, 65536))


def next_free(host: str, first: int) -> int | None:
    """Return the first port from `first` on, of at most ten, at which a process could listen; None if there is none."""
    return next((port for port in candidates(first) if is_free(host, port)), None)


@dataclass(frozen=True)
class PortReservation:
    """Ports that no other process gets, until `close` releases them."""

    ports: tuple[int, ...]
    close: Callable[[], None]


def reserve(count: int) -> PortReservation:
    """Reserve `count` free ports. Raises LauncherError if there are fewer."""
    return reserve_by_binding(count) if sys.platform == "linux" else reserve_by_locking(count)


def reserve_by_binding(count: int) -> PortReservation:
    """Reserve ports by sockets that are bound and never listen. Linux only."""
    stack = contextlib.ExitStack()
    ports = []
    try:
        for _ in range(count):
            held = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # On every interface, as TensorFlow listens: so another program on one of them is noticed here.
            held.bind(("0.0.0.0", 0))  # noqa: S104 - it never listens
            ports.append(held.getsockname()[1])
    except OSError as error:
        stack.close()
        raise _too_few(count, error) from error
    return PortReservation(tuple(ports), stack.close)


def reserve_by_locking(count: int, directory: Path | None = None) -> PortReservation:
    """Reserve each port by a lock file in a directory that only this user can use. Raises LauncherError if others can."""
    # One directory for all runs of a user.
    locks_directory = directory or Path(tempfile.gettempdir()) / f"launcher-ports-{os.getuid()}"
    _create_private(locks_directory)
    stack = contextlib.ExitStack()
    ports: list[int] = []
    try:
        for port in random.sample(_PORT_RANGE, len(_PORT_RANGE)):
            if len(ports) == count:
                break
            fd = locks.acquire(locks_directory / str(port))
            if fd is None:
                continue
            if not _can_be_bound(port):
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


def _create_private(directory: Path) -> None:
    """Create the directory; refuse one that another user has created: through links in it we would write files elsewhere."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
    except OSError as error:
        raise LauncherError(f"{directory} cannot be created: {error.strerror}", _REMEDY) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise LauncherError(f"{directory} is not a directory that only you can use", _REMEDY)


def _can_be_bound(port: int) -> bool:
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
