"""An event loop and a connection prober that a test controls, so that no test waits: it advances the clock and chooses which addresses answer."""

from collections.abc import Callable
from functools import partial

from trainer.event_loop import EventLoop
from trainer.peers import ConnectionProber, FailureReason


class FakeClockLoop(EventLoop):
    """An event loop with a fake clock: timers fire when the test advances it."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0

    def now(self) -> float:
        """See EventLoop.now."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Advance the clock, and make each call that falls due at its time."""
        end = self._now + seconds
        self._running = True
        while self._until_next() is not None and self._timers[0][0] <= end:
            self._now = max(self._now, self._timers[0][0])
            self._run_due()
        self._now = end


class FakeProber(ConnectionProber):
    """A prober for which every address refuses connections, except those in `reachable`."""

    def __init__(self, loop: EventLoop) -> None:
        super().__init__(loop)
        self.reachable: set[str] = set()
        self.probed: list[str] = []

    def ask(self, address: str, then: Callable[[FailureReason], None]) -> None:
        """See ConnectionProber.ask."""
        self.probed.append(address)
        self._loop.call_later(0, partial(then, None if address in self.reachable else "connection refused"))
