"""Holds a task's port until TensorFlow takes it: it answers, so that peers and health checks see that the task runs."""

import contextlib
import os
import socket
import threading
import time

from trainer.socket_filter import listen
from trainer.tf_config import split_address

_BACKLOG = 1024  # connections that wait to be accepted: all tasks of a cluster may connect at once
_POLL_INTERVAL = 0.1  # seconds between checks whether it is closed: not on every system does `shutdown` wake `accept`


class PortHolder:
    """Accepts connections at an address and closes them, in a thread, from `open` to `close`. Both may be called more than once.

    It does so for at most `seconds`, so that a task that hangs before TensorFlow serves does not answer forever.
    """

    def __init__(self, address: str | None, seconds: float) -> None:
        self._address, self._seconds = address, seconds
        self._listener: socket.socket | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        # A forked process must not keep the port from TensorFlow.
        os.register_at_fork(after_in_child=self._drop)

    def open(self) -> bool:
        """Answer from now on; return False if another process has the port."""
        if self._thread is None and self._address is not None and not self._closed.is_set():
            with contextlib.suppress(OSError):
                self._listener = listen(*split_address(self._address), backlog=_BACKLOG)
                self._listener.settimeout(_POLL_INTERVAL)
                self._thread = threading.Thread(target=self._accept_and_close, args=(self._listener,), name="port holder", daemon=True)
                self._thread.start()
        return self._thread is not None and not self._closed.is_set()

    def close(self) -> None:
        """Free the port, for good: `open` then does nothing."""
        self._closed.set()
        if self._listener is None or self._thread is None:
            return
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # on Linux this ends the thread's `accept`
        self._thread.join()

    def _accept_and_close(self, listener: socket.socket) -> None:
        until = time.monotonic() + self._seconds
        while not self._closed.is_set() and time.monotonic() < until:
            try:
                connection, _ = listener.accept()
                connection.close()  # not by a reset: the client may not have seen the connection yet
            except TimeoutError:
                continue
            except OSError:  # it was shut down; or, for example, there are no more files
                self._closed.wait(_POLL_INTERVAL)
        listener.close()

    def _drop(self) -> None:
        if self._listener is not None:
            self._listener.close()
