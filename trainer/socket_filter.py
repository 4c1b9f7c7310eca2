"""Closes TensorFlow's port to other machines if this task's address is of the loopback device.

TensorFlow's gRPC server listens on every address, whatever TF_CONFIG says, and runs any code that it is sent. On Linux
a socket can have a filter (SO_ATTACH_FILTER, no privilege needed) that the kernel applies to each packet; sockets
returned by accept() inherit it. Packets that are not from loopback are dropped as if nothing listened.
Source: Linux, Documentation/networking/filter.rst; net/core/filter.c.
"""

import contextlib
import ctypes
import ipaddress
import os
import socket
import stat
import sys
import threading
from collections.abc import Iterator

_SO_ATTACH_FILTER = 26  # <asm-generic/socket.h>
_SO_ACCEPTCONN = 30
_POLL_INTERVAL = 0.02  # seconds between checks whether something listens
_NETWORK_HEADER = 0xFFF00000  # SKF_NET_OFF: offsets from the IP header
_ACCEPT, _DROP = 0xFFFFFFFF, 0

# Operation codes of classic BPF, <linux/bpf_common.h>.
_LOAD_BYTE, _LOAD_WORD, _SHIFT_RIGHT, _JUMP_IF_EQUAL, _RETURN = 0x30, 0x20, 0x74, 0x15, 0x06

# (operation, jump if true, jump if false, constant); jumps count from the next instruction.
_FROM_LOOPBACK = (
    (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),  # version and header length
    (_SHIFT_RIGHT, 0, 0, 4),
    (_JUMP_IF_EQUAL, 0, 2, 4),
    (_LOAD_BYTE, 0, 0, _NETWORK_HEADER + 12),  # IPv4: the source's first byte
    (_JUMP_IF_EQUAL, 8, 9, 127),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 8),  # IPv6: the source's four words, ::1
    (_JUMP_IF_EQUAL, 0, 7, 0),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 12),
    (_JUMP_IF_EQUAL, 0, 5, 0),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 16),
    (_JUMP_IF_EQUAL, 0, 3, 0),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 20),
    (_JUMP_IF_EQUAL, 0, 1, 1),
    (_RETURN, 0, 0, _ACCEPT),
    (_RETURN, 0, 0, _DROP),
)


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.c_void_p))


def is_loopback(address: str) -> bool:
    """Return whether a task's address, host:port, is a loopback address."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int, backlog: int = 128) -> socket.socket:
    """Return a socket that listens at a port: only on `host` if that is loopback, else on every address. Raises OSError."""
    if is_loopback(f"{host}:{port}"):
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=backlog)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
    return socket.create_server(("", port), backlog=backlog)


def restrict_to_loopback(address: str | None) -> int:
    """Restrict this process's listening sockets at `address` to loopback, if that is a loopback address.

    Call it as soon as the server listens. Returns the number of sockets that were restricted; always 0 on systems other
    than Linux.
    """
    if sys.platform != "linux" or address is None or not is_loopback(address):
        return 0
    port = int(address.rpartition(":")[2])
    closed = 0
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the names are numbers, not paths
        with contextlib.suppress(OSError):
            closed += _filter_if_listening(int(name), port)
    return closed


@contextlib.contextmanager
def restricting_to_loopback(address: str | None) -> Iterator[None]:
    """Restrict the port to loopback as soon as the code inside listens on it; later if TensorFlow holds the GIL until all peers are connected."""
    done = threading.Event()

    def watch() -> None:
        while not restrict_to_loopback(address) and not done.wait(_POLL_INTERVAL):
            pass

    needed = sys.platform == "linux" and address is not None and is_loopback(address)
    watcher = threading.Thread(target=watch, name="socket filter", daemon=True)
    if needed:
        watcher.start()
    try:
        yield
    finally:
        done.set()
        if needed:
            watcher.join()
            restrict_to_loopback(address)


def _filter_if_listening(fd: int, port: int) -> bool:
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return False
    with socket.socket(fileno=os.dup(fd)) as sock:
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.getsockname()[1] != port:
            return False
        if not sock.getsockopt(socket.SOL_SOCKET, _SO_ACCEPTCONN):
            return False
        code = (_Instruction * len(_FROM_LOOPBACK))(*(_Instruction(*row) for row in _FROM_LOOPBACK))
        program = _Program(len(_FROM_LOOPBACK), ctypes.addressof(code))
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(program))
        return True
