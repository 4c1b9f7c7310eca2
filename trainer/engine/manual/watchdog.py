"""Watches over a program that the chief runs: ends it on a stop or if a server is gone, and keeps run.json up to date.

The program's own thread may be inside TensorFlow, waiting for a task that is gone forever, and cannot be interrupted there. So this
is a thread beside it, which calls `exit_process` when the program is to end.

It keeps its last connection to each server: if that breaks, the server's process has ended, though another may serve in its place a
second later.
"""

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from trainer.engine.connections import closed_by_peer, connect
from trainer.exit_codes import ExitCode

_STOP_CHECK_INTERVAL = 0.1  # seconds between checks whether a stop was asked for
_CONNECT_TIMEOUT = 1.0

# Ends this process; the text says why.
Exit = Callable[[ExitCode, str], None]


@dataclass
class ProgramWatchdog:
    """A thread that watches from `start` to `stop`. A server is gone if it accepted no connection for `timeout` seconds.

    A server that was never reached does not count as gone: `peer_wait` limits the wait for it.
    """

    servers: Mapping[str, str]  # name -> address
    stop_requested: Callable[[], bool]
    heartbeat: Callable[[], None]  # called every few seconds, once all are connected
    exit_process: Exit
    timeout: float = 20.0
    poll_interval: float = 2.0  # seconds between rounds of connecting to every server
    heartbeat_interval: float = 5.0  # seconds after which run.json says again that the run is alive
    _reached: set[str] = field(default_factory=set)
    _connections: dict[str, socket.socket] = field(default_factory=dict)  # name -> the last connection to it
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
        """Record that every server is connected, and the program begins."""
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
        """Return the servers whose processes have ended since the program began, as far as their connections have broken."""
        with self._lock:
            self._ended |= {name for name, connection in self._connections.items() if closed_by_peer(connection)}
            return [name for name in self.servers if name in self._ended]

    def _run(self) -> None:
        last_poll = last_heartbeat = time.monotonic()
        started = False
        silent: dict[str, float] = {}  # server -> since when
        while not self._done.wait(_STOP_CHECK_INTERVAL):
            now = time.monotonic()
            if self.stop_requested():
                self.exit_process(ExitCode.STOPPED, "")
                return
            if self._started and now - last_heartbeat >= self.heartbeat_interval:
                with suppress(OSError):  # a full disk must not end the watching: a stop would not be noticed any more
                    self.heartbeat()
                last_heartbeat = now
            if now - last_poll >= self.poll_interval or started != self._started:
                started = self._started
                if lost := self._find_lost(silent):
                    self.exit_process(ExitCode.PEER_LOST, lost)
                    return
                last_poll = time.monotonic()

    def _find_lost(self, silent: dict[str, float]) -> str | None:
        """Connect to every server; return a message about one that has not answered for too long, if there is one."""
        for name, address in self.servers.items():
            if self._done.is_set() or self.stop_requested():
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
        """Keep a new connection to a server in place of the previous one: gRPC closes one that is idle for two minutes."""
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
