"""Chooses the steps of one call into TensorFlow by measurement if `steps_per_execution` is not set; the intervals and rates of reports."""

import time

_CALL_SECONDS = 0.2  # a call this long hides its own cost (about 1 ms) and still shows progress
REPORT_INTERVAL = 0.5  # seconds between progress events if the settings give no steps
_MAX_STEPS = 1000
_GROWTH = 8  # the largest factor between two calls: the first ones are slow for other reasons (tracing, caches)


def next_steps(steps: int, seconds: float) -> int:
    """Return the steps of the next call: those of about _CALL_SECONDS, as `steps` steps took `seconds`; at most _GROWTH times as many."""
    fitting = int(steps * _CALL_SECONDS / max(seconds, 1e-6))
    return max(1, min(fitting, steps * _GROWTH, _MAX_STEPS))


def to_boundary(step: int, wanted: int, last: int, *every: int | None) -> int:
    """Return how many of `wanted` steps to run from `step` so that no multiple of `every`, nor `last`, is passed."""
    stops = [last, *(step - step % e + e for e in every if e)]
    return max(1, min(wanted, *(s - step for s in stops)))


class Interval:
    """Returns, when called, whether something is due that happens every so many steps or seconds."""

    def __init__(self, steps: int | None, seconds: float | None = None) -> None:
        self._steps, self._seconds = steps, seconds
        self._last_step, self._last_time = 0, time.monotonic()

    def start(self, step: int) -> None:
        """Count from here and now."""
        self._last_step, self._last_time = step, time.monotonic()

    def __call__(self, step: int) -> bool:
        """Return whether it is due at `step`; if so, count again from here."""
        by_steps = bool(self._steps and step // self._steps > self._last_step // self._steps)
        by_time = self._seconds is not None and time.monotonic() - self._last_time >= self._seconds
        if by_steps or by_time:
            self.start(step)
            return True
        return False


class Rate:
    """Counts examples and steps, and returns their rates since the last `take`.

    They are not computed from a call's seconds: an asynchronous call also reports results from before it began.
    """

    def __init__(self) -> None:
        self._examples = self._steps = 0
        self._since = time.monotonic()

    def start(self) -> None:
        """Count from now."""
        self._examples = self._steps = 0
        self._since = time.monotonic()

    def add(self, examples: int, steps: int) -> None:
        """Count these, too."""
        self._examples += examples
        self._steps += steps

    def take(self) -> tuple[float, float]:
        """Return examples per second and seconds per step since the start; start again."""
        seconds = time.monotonic() - self._since
        rates = self._examples / seconds, seconds / max(1, self._steps)
        self.start()
        return rates
