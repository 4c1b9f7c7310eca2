"""Watches over a program that the chief runs: a stop that was asked for, servers that are gone, and that run.json stays fresh.

The program's own thread may be inside TensorFlow, waiting for a task that is gone forever, and cannot be interrupted there. So this
is a thread beside it, which calls `leave` when the program is to end; that does not return.
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

_LOOK_EVERY = 0.1  # seconds between looks whether a stop was asked for
_CONNECT_TIMEOUT = 1.0

# Ends this process; the text says why.
Leave = Callable[[ExitCode, str], None]


@dataclass
class Watch:
    """A thread that watches from `start` to `stop`. A server is gone when it gave no connection for `patience` seconds.

    Before a server was there once, it is awaited, as long as it takes: somebody else sees to that.
    """

    servers: Mapping[str, str]  # name -> address
    stopped: Callable[[], bool]
    alive: Callable[[], None]  # called every few seconds, once all are there
    leave: Leave
    patience: float = 20.0
    ask_every: float = 2.0  # seconds between rounds of asking every server for a connection
    say_every: float = 5.0  # seconds after which run.json says again that the run is alive
    _seen: set[str] = field(default_factory=set)
    _begun: bool = False
    _done: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def all_there(self) -> None:
        """Say that every server is there, and the program begins."""
        self._seen |= set(self.servers)
        self._begun = True

    def stop(self) -> None:
        """End watching; nothing is called any more when this returns."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        asked = said = time.monotonic()
        silent: dict[str, float] = {}  # server -> since when
        while not self._done.wait(_LOOK_EVERY):
            now = time.monotonic()
            if self.stopped():
                self.leave(ExitCode.STOPPED, "")
                return
            if self._begun and now - said >= self.say_every:
                with suppress(OSError):  # a full disk must not end the watching: a stop would not be heard any more
                    self.alive()
                said = now
            if now - asked >= self.ask_every:
                if gone := self._gone(silent):
                    self.leave(ExitCode.PEER_LOST, gone)
                    return
                asked = time.monotonic()

    def _gone(self, silent: dict[str, float]) -> str | None:
        """Ask every server; say which one has been silent for too long, if one has."""
        for name, address in self.servers.items():
            if self._done.is_set() or self.stopped():
                return None
            reason = unreachable(address, _CONNECT_TIMEOUT)
            now = time.monotonic()
            if reason is None:
                silent.pop(name, None)
                self._seen.add(name)
            elif name in self._seen and now - silent.setdefault(name, now) >= self.patience:
                return f"{name} ({address}) is gone: {reason} for {self.patience:g} s"
        return None


def unreachable(address: str, timeout: float) -> str | None:
    """Return why `address` gives no connection within `timeout` seconds, None when it gives one."""
    try:
        with socket.create_connection(split_address(address), timeout=timeout) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            return outcome(connection)
    except OSError as error:
        return (error.strerror or "no answer").lower()
