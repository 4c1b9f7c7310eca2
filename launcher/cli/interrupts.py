"""Counts Ctrl-C and other signals that ask to stop, so that the first and the second can have different effects."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

from launcher.cli.errors import INTERRUPTED
from launcher.errors import LauncherError
from trainer.exit_codes import ExitCode

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """A context manager that counts the signals that ask to stop. Its exit restores the previous handlers."""

    def __init__(self) -> None:
        self.count = 0
        self.first: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in _STOP_SIGNALS:
            # Signals that the parent process had ignored stay ignored: SIGHUP under nohup, SIGINT behind a script's `&`.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def errors_exit_as_interrupted(self) -> Iterator[None]:
        """Give an error of a `with` block the exit code of a stopped run, if a signal came in the block."""
        try:
            yield
        except LauncherError as error:
            if self.first is not None:
                error.exit_code = INTERRUPTED if self.first == signal.SIGINT else int(ExitCode.STOPPED)
            raise

    def _record(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.count += 1
        self.first = self.first or number


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit, once, in a `with` block, so that it cleans up as it does after Ctrl-C."""
    previous = {
        number: handler for number in (signal.SIGTERM, signal.SIGHUP) if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        for ignored in previous:  # closing a terminal sends several
            signal.signal(ignored, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in previous:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
