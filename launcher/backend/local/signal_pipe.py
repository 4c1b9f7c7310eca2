"""Signals as bytes in a socket, which a selector can wait for."""

import contextlib
import signal
import socket
from collections.abc import Iterable


class SignalPipe:
    """Turns signals into readable bytes; select on `fileno`. At most one per process, created on its main thread."""

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            # Python writes the byte only for signals that have a handler. The reader of the byte does the work.
            signal.signal(number, lambda _number, _frame: None)

    def fileno(self) -> int:
        """Return the file descriptor to select on."""
        return self._reading.fileno()

    def read(self) -> list[int]:
        """Return the numbers of the signals that came since the last call."""
        with contextlib.suppress(BlockingIOError):
            return list(self._reading.recv(4096))
        return []
