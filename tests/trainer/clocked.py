"""A loop whose time the test lets pass, and addresses that answer as the test says: nothing is waited for."""

from collections.abc import Callable
from functools import partial

from trainer.event_loop import EventLoop
from trainer.peers import Answer, ConnectionProber


class Clocked(EventLoop):
    """Timers are called when the test has let their time pass."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0

    def now(self) -> float:
        """See EventLoop.now."""
        return self._now

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and make the calls that are due meanwhile, each at its time."""
        end = self._now + seconds
        self._running = True
        while self._until_next() is not None and self._timers[0][0] <= end:
            self._now = max(self._now, self._timers[0][0])
            self._run_due()
        self._now = end


class Answers(ConnectionProber):
    """Every address refuses connections but those in `there`."""

    def __init__(self, loop: EventLoop) -> None:
        super().__init__(loop)
        self.there: set[str] = set()
        self.asked: list[str] = []

    def ask(self, address: str, then: Callable[[Answer], None]) -> None:
        """See ConnectionProber.ask."""
        self.asked.append(address)
        self._loop.call_later(0, partial(then, None if address in self.there else "connection refused"))
