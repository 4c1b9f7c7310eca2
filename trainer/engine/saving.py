"""Saves checkpoints in a thread of its own, so that training continues where a volume is full, read-only or broken, or does not answer.

The training thread copies the state to memory and continues. A save that fails is given up: a retry, after 1 s and up to 30 s, saves the
state at the time of the retry. The same failure is reported again only after a minute. At the end there is no later state: the copy
stays, and is tried again after 5 s at most, until it is written or `complete` raises an error.
"""

import math
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from trainer.engine.checkpoints import Checkpoints, InMemoryCheckpoint, step_of
from trainer.engine.session import PeerLostError, SaveError, UnsavedStopError
from trainer.events import Reporter

_PREVIOUS_SAVE_TIMEOUT = 5.0  # seconds that training waits for the previous save, so that a slow disk gets every checkpoint
_RETRY_DELAYS = (1.0, 30.0)  # seconds until a retry: first, and at most; doubled each time
_LAST_RETRY_DELAY = 5.0  # the most for the run's last state, which may have no more than a grace period
_REPORT_AGAIN = 60.0  # seconds after which the same failure is reported once more
_POLL_INTERVAL = 0.05
_savers: list["Saver"] = []  # of this process
_MARGIN = 5.0  # seconds of the grace period, at most half of it, that are reserved for the report of lost steps and the end of the process


@dataclass(frozen=True)
class Timeouts:
    """Times in seconds.

    `timeout`: how long training continues without a save. `grace`: for a stop. `silent`: after which a volume counts as hanging.
    `retry_delay`: until a failed save is tried again, longer each time.
    """

    timeout: float = 1800.0
    grace: float = 30.0
    silent: float = 10.0
    retry_delay: float = _RETRY_DELAYS[0]

    @property
    def stop(self) -> float:
        """Return the part of the grace period in which the last state, and a model, may be written."""
        return self.grace - min(_MARGIN, self.grace / 2)


def wait_for_saves() -> None:
    """Wait for saves in progress, as `Saver.wait` does, before the process is ended."""
    for saver in _savers:
        saver.wait()


class Saver:
    """Writes the checkpoints of one run. `on_saved` is called, in another thread, with the step and path of each."""

    def __init__(self, checkpoints: Checkpoints, report: Reporter, timeouts: Timeouts, on_saved: Callable[[int, str], None]) -> None:
        self._checkpoints, self._report, self._timeouts, self._on_saved = checkpoints, report, timeouts, on_saved
        self._changed = threading.Condition()
        self._unwritten: InMemoryCheckpoint | None = None  # to be written, or being written
        self._began: float | None = None  # when its write began
        self._progress = (0, 0.0)  # bytes written, and when that number was first seen
        self._is_last = False  # whether it is the run's last state, which is tried again until it is written
        self._failing_since: float | None = None
        self._failed_at = 0.0  # when the last try failed
        self._cause = ""
        self._lost_peer: PeerLostError | None = None
        self._reported_at = -math.inf
        self._delay, self._retry_at = 0.0, math.inf
        self.saved_step: int | None = None if checkpoints.latest is None else step_of(checkpoints.latest)
        _savers.append(self)
        for work in (self._write_loop, self._watch):
            threading.Thread(target=work, name="saving", daemon=True).start()

    def wait(self) -> None:
        """Wait until the pending save is written, even if training has failed; no longer than `silent`, and not while saves fail."""
        with self._changed:
            self._changed.wait_for(lambda: self._unwritten is None or self._failing_since is not None, self._timeouts.silent)

    # For the training thread

    @property
    def retry_is_due(self) -> bool:
        """Whether to repeat a save that has failed."""
        return self._unwritten is None and time.monotonic() >= self._retry_at

    def save(self, step: int, callbacks: bytes = b"", *, last: bool = False) -> bool:
        """Copy the state to memory, to be written. Return False if an earlier save does not end: `retry_is_due` is true once it has ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._unwritten is None or (self._failing_since is not None and not last), None if last else _PREVIOUS_SAVE_TIMEOUT
            )
            if self._unwritten is not None:
                self._retry_at = 0.0
                return False
        self._retry_at = math.inf
        checkpoint = self._checkpoints.capture(step, callbacks)
        with self._changed:
            self._unwritten, self._is_last = checkpoint, last
            self._changed.notify_all()
        return True

    def check(self) -> None:
        """Do nothing while training may continue.

        Raises:
            SaveError: nothing could be saved for the timeout.
            PeerLostError: a task that holds a part of the state is gone.
        """
        if self._lost_peer is not None:
            raise self._lost_peer
        since = self._failing_since
        if since is None:
            return
        # Saves are retried only between steps. So the time counts up to the last try: the fault may have ended during a long evaluation.
        tried = self._failed_at if self._began is None else time.monotonic()
        if tried - since >= self._timeouts.timeout:
            raise SaveError(f"{self._unsaved()} for {self._timeouts.timeout:g} s")

    def _unsaved(self) -> str:
        last = "there is no checkpoint" if self.saved_step is None else f"the last checkpoint is of step {self.saved_step}"
        return f"{last}: nothing could be saved to {self._checkpoints.directory} ({self._cause or 'it does not answer'})"

    def complete(self, stop_requested: Callable[[], bool], *, stopping: bool, since: float | None = None) -> None:
        """Wait until the pending save is written.

        `stop_requested` returns whether a stop was requested; `stopping`: one was requested earlier, at `since`.
        Raises:
            SaveError: nothing could be saved for the timeout.
            UnsavedStopError: a stop was requested, and its grace period passed without a save.
        """
        grace = self._timeouts.stop
        until = math.inf
        while self._unwritten is not None:
            if until == math.inf and (stopping or stop_requested()):
                until = (since if stopping and since is not None else time.monotonic()) + grace
            if time.monotonic() >= until:
                raise UnsavedStopError(f"asked to stop, and {self._unsaved()} for {grace:g} s; later steps are lost")
            self.check()
            with self._changed:
                self._changed.wait_for(lambda: self._unwritten is None, _POLL_INTERVAL)
        self.check()

    # In the thread that writes

    def _write_loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unwritten is not None)
            checkpoint = self._unwritten
            assert checkpoint is not None  # noqa: S101 - only this thread takes it away
            began = time.monotonic()
            try:
                path = self._write(checkpoint, began)
            except PeerLostError as error:  # it held rows of the checkpoint: the volume has not failed
                self._lost_peer, self._is_last = error, False
            except Exception as error:  # noqa: BLE001 - any error of a volume's file system: training continues
                self._failed(checkpoint, error, began)
            else:
                self._succeeded(checkpoint, path, began)
            if self._is_last and self._failing_since is not None:
                time.sleep(max(0.0, self._retry_at - time.monotonic()))
                continue
            with suppress(Exception):
                checkpoint.discard()
            with self._changed:
                self._unwritten = None
                self._changed.notify_all()

    def _write(self, checkpoint: InMemoryCheckpoint, began: float) -> str:
        self._progress, self._began = (self._checkpoints.written, began), began
        try:
            return self._checkpoints.write(checkpoint)
        finally:
            with self._changed:  # from here on `_watch` does not report this write
                self._began = None

    def _succeeded(self, checkpoint: InMemoryCheckpoint, path: str, began: float) -> None:
        since, self._failing_since, self._delay, self._reported_at, self._cause = self._failing_since, None, 0.0, -math.inf, ""
        self.saved_step = checkpoint.step
        now = time.monotonic()
        if since is not None:
            self._report("notice", message=f"checkpoints can be saved again, after {now - since:.0f} s")
        self._on_saved(checkpoint.step, path)
        self._report("checkpoint", step=checkpoint.step, path=path, seconds=now - began)

    def _failed(self, checkpoint: InMemoryCheckpoint, error: Exception, began: float) -> None:
        self._failed_at = time.monotonic()
        self._delay = min(2 * self._delay or self._timeouts.retry_delay, _LAST_RETRY_DELAY if self._is_last else _RETRY_DELAYS[1])
        self._retry_at = self._failed_at + self._delay
        free = None
        with suppress(OSError):
            free = shutil.disk_usage(self._checkpoints.directory).free
        self._report_failure(checkpoint, getattr(error, "strerror", None) or str(error) or repr(error), began, free)

    def _report_failure(self, checkpoint: InMemoryCheckpoint, cause: str, began: float, free: int | None) -> None:
        """Report a failure, unless the same one was reported recently."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = began
        if cause == self._cause and now - self._reported_at < _REPORT_AGAIN:
            return
        self._cause, self._reported_at = cause, now
        self._report(
            "save_failed",
            step=checkpoint.step,
            path=str(self._checkpoints.directory),
            cause=cause,
            seconds=now - self._failing_since,
            timeout=self._timeouts.timeout,
            size=checkpoint.size,
            free=free,
            saved=self.saved_step,
        )

    # In the thread that watches the writing one

    def _watch(self) -> None:
        """Report a write that makes no progress, without access to the volume, which would hang, too."""
        while True:
            time.sleep(min(1.0, self._timeouts.silent / 4))
            with self._changed:  # the write does not end before its report
                self._check_progress()

    def _check_progress(self) -> None:
        checkpoint, now = self._unwritten, time.monotonic()
        if checkpoint is None or self._began is None:
            return
        written, since = self._progress
        if written != self._checkpoints.written:
            self._progress = (self._checkpoints.written, now)
        elif now - since >= self._timeouts.silent:
            clock = time.strftime("%H:%M:%S", time.gmtime(time.time() - now + since))
            self._report_failure(checkpoint, f"it has not answered since {clock} UTC", since, None)
