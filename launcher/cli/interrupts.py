"""Ctrl-C once and twice: signals become stages, while this object is entered."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

from launcher.cli.errors import INTERRUPTED
from launcher.errors import LauncherError
from trainer.exit_codes import ExitCode

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Counts the signals that ask to stop. The handlers that were there before come back on leaving."""

    def __init__(self) -> None:
        self.count = 0
        self.first: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in _ASKING:
            # Signals that we were started to ignore stay ignored: SIGHUP under nohup, SIGINT behind a script's `&`.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def with_exit_code(self) -> Iterator[None]:
        """Give what is raised in a `with` block the exit code of a run that was stopped, where somebody has asked for that meanwhile."""
        try:
            yield
        except LauncherError as error:
            if self.first is not None:
                error.exit_code = INTERRUPTED if self.first == signal.SIGINT else int(ExitCode.STOPPED)
            raise

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.count += 1
        self.first = self.first or number


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a `with` block as Ctrl-C does, so that it removes what it has made: they raise SystemExit, once."""
    before = {number: handler for number in (signal.SIGTERM, signal.SIGHUP) if (handler := signal.getsignal(number)) is not signal.SIG_IGN}

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        for one in before:  # a terminal that is closed sends more than one
            signal.signal(one, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
