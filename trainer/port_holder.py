"""A task's port before it is TensorFlow's: it answers, so that anyone who watches the task sees that it is there."""

import contextlib
import os
import socket
import threading
import time

from trainer.socket_filter import listen
from trainer.tf_config import split_address

_BACKLOG = 1024  # connections that wait to be taken: all tasks of a cluster may ask at once
_POLL_INTERVAL = 0.1  # seconds between checks whether it is closed: not everywhere does `shutdown` wake who accepts


class PortHolder:
    """Takes connections at an address and closes them, in a thread, from `open` to `close`. Both may be called more than once.

    It does so for some `seconds` at most: a task that hangs before TensorFlow serves is not there forever.
    """

    def __init__(self, address: str | None, seconds: float) -> None:
        self._address, self._seconds = address, seconds
        self._listener: socket.socket | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        # A process forked off must not keep the port from TensorFlow.
        os.register_at_fork(after_in_child=self._drop)

    def open(self) -> bool:
        """Answer from now on; returns False where the port cannot be had."""
        if self._thread is None and self._address is not None and not self._closed.is_set():
            with contextlib.suppress(OSError):
                self._listener = listen(*split_address(self._address), backlog=_BACKLOG)
                self._listener.settimeout(_POLL_INTERVAL)
                self._thread = threading.Thread(target=self._accept_and_close, args=(self._listener,), name="placeholder", daemon=True)
                self._thread.start()
        return self._thread is not None and not self._closed.is_set()

    def close(self) -> None:
        """Free the port, for good: `open` does nothing any more."""
        self._closed.set()
        if self._listener is None or self._thread is None:
            return
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # on Linux the thread waits for it no longer
        self._thread.join()

    def _accept_and_close(self, listener: socket.socket) -> None:
        until = time.monotonic() + self._seconds
        while not self._closed.is_set() and time.monotonic() < until:
            try:
                connection, _ = listener.accept()
                connection.close()  # in order: the client may not have seen yet that it was taken
            except TimeoutError:
                continue
            except OSError:  # it was shut down; or, for example, there are no more files
                self._closed.wait(_POLL_INTERVAL)
        listener.close()

    def _drop(self) -> None:
        if self._listener is not None:
            self._listener.close()
