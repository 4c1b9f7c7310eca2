"""TCP connections to the servers of other tasks: whether one accepts them, and whether its process has ended."""

import socket

from trainer.peers import RESET_ON_CLOSE, connect_error
from trainer.tf_config import split_address


def unreachable(address: str, timeout: float) -> str | None:
    """Return why `address` accepts no connection within `timeout` seconds, None if it does."""
    connection, reason = connect(address, timeout)
    if connection is not None:
        connection.close()
    return reason


def connect(address: str, timeout: float) -> tuple[socket.socket | None, str | None]:
    """Return a connection that `address` accepts within `timeout` seconds, or why it accepts none."""
    try:
        connection = socket.create_connection(split_address(address), timeout=timeout)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    except OSError as error:
        return None, (error.strerror or "no answer").lower()
    if reason := connect_error(connection):
        connection.close()
        return None, reason
    connection.setblocking(False)
    return connection, None


def keep_alive(connection: socket.socket, idle: int, interval: int, count: int) -> None:
    """Let the kernel probe the other end after `idle` seconds, each `interval`, and end the connection after `count` unanswered probes."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {"TCP_KEEPIDLE": idle, "TCP_KEEPINTVL": interval, "TCP_KEEPCNT": count}.items():
        if (option := getattr(socket, name, None)) is not None:  # not every system has every one
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def closed_by_peer(connection: socket.socket) -> bool:
    """Return whether the other end has closed a connection; what it sent before, such as gRPC's greeting, is dropped."""
    try:
        while connection.recv(1024):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
