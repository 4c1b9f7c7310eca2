"""Watches over a program that the chief runs: a stop that was asked for, servers that are gone, and that run.json stays fresh.

The program's own thread may be inside TensorFlow, waiting for a task that is gone forever, and cannot be interrupted there. So this
is a thread beside it, which calls `exit_process` when the program is to end; that does not return.

It keeps the connection by which it last saw a server: where that breaks the server's process has ended, though another may serve
in its place a second later.
"""

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from trainer.exit_codes import ExitCode
from trainer.peers import RESET_ON_CLOSE, outcome
from trainer.tf_config import split_address

_STOP_CHECK_INTERVAL = 0.1  # seconds between checks whether a stop was asked for
_CONNECT_TIMEOUT = 1.0

# Ends this process; the text says why.
Exit = Callable[[ExitCode, str], None]


@dataclass
class ServerWatchdog:
    """A thread that watches from `start` to `stop`. A server is gone when it gave no connection for `timeout` seconds.

    Before a server was there once, it is awaited, as long as it takes: somebody else sees to that.
    """

    servers: Mapping[str, str]  # name -> address
    stopped: Callable[[], bool]
    alive: Callable[[], None]  # called every few seconds, once all are there
    exit_process: Exit
    timeout: float = 20.0
    poll_interval: float = 2.0  # seconds between rounds of asking every server for a connection
    alive_interval: float = 5.0  # seconds after which run.json says again that the run is alive
    _reached: set[str] = field(default_factory=set)
    _connections: dict[str, socket.socket] = field(default_factory=dict)  # name -> the connection that it gave last
    _ended: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # of the two above
    _started: bool = False
    _done: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def all_connected(self) -> None:
        """Note that every server is connected, and the program begins."""
        self._reached |= set(self.servers)
        self._started = True

    def stop(self) -> None:
        """End watching; nothing is called any more when this returns."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        for connection in self._connections.values():
            connection.close()

    def ended(self) -> list[str]:
        """Return the servers whose processes have ended since the program began, as far as their kernels have shown."""
        with self._lock:
            self._ended |= {name for name, connection in self._connections.items() if closed_by_peer(connection)}
            return [name for name in self.servers if name in self._ended]

    def _run(self) -> None:
        last_poll = last_alive = time.monotonic()
        started = False
        silent: dict[str, float] = {}  # server -> since when
        while not self._done.wait(_STOP_CHECK_INTERVAL):
            now = time.monotonic()
            if self.stopped():
                self.exit_process(ExitCode.STOPPED, "")
                return
            if self._started and now - last_alive >= self.alive_interval:
                with suppress(OSError):  # a full disk must not end the watching: a stop would not be noticed any more
                    self.alive()
                last_alive = now
            if now - last_poll >= self.poll_interval or started != self._started:
                started = self._started
                if lost := self._find_lost(silent):
                    self.exit_process(ExitCode.PEER_LOST, lost)
                    return
                last_poll = time.monotonic()

    def _find_lost(self, silent: dict[str, float]) -> str | None:
        """Ask every server; return a message about the one that has been silent for too long, if one has."""
        for name, address in self.servers.items():
            if self._done.is_set() or self.stopped():
                return None
            connection, reason = connect(address, _CONNECT_TIMEOUT)
            self._replace_connection(name, connection)
            now = time.monotonic()
            if reason is None:
                silent.pop(name, None)
                self._reached.add(name)
            elif name in self._reached and now - silent.setdefault(name, now) >= self.timeout:
                return f"{name} ({address}) is gone: {reason} for {self.timeout:g} s"
        return None

    def _replace_connection(self, name: str, connection: socket.socket | None) -> None:
        """Keep a connection that a server gave, in place of the one before: gRPC ends one on which nothing was said for two minutes."""
        if connection is None:
            return
        if not self._started:
            connection.close()
            return
        self.ended()
        with self._lock:
            before, self._connections[name] = self._connections.get(name), connection
        if before is not None:
            before.close()


def unreachable(address: str, timeout: float) -> str | None:
    """Return why `address` gives no connection within `timeout` seconds, None when it gives one."""
    connection, reason = connect(address, timeout)
    if connection is not None:
        connection.close()
    return reason


def connect(address: str, timeout: float) -> tuple[socket.socket | None, str | None]:
    """Return a connection that `address` gives within `timeout` seconds, or why it gives none."""
    try:
        connection = socket.create_connection(split_address(address), timeout=timeout)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    except OSError as error:
        return None, (error.strerror or "no answer").lower()
    if reason := outcome(connection):
        connection.close()
        return None, reason
    connection.setblocking(False)
    return connection, None


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
