"""Waits with a deadline. A wait that fails names its condition and the last state that it saw."""

import time
from collections.abc import Callable
from typing import Any


def until(what: str, condition: Callable[[], Any], seconds: float = 300, *, seen: Callable[[], object], every: float = 0.02) -> Any:
    """Return the condition's first true result. Checks it `every` so many seconds; fails after `seconds` with `what` and the result of `seen`."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}; seen last: {_last_seen(seen)}"
        time.sleep(every)
    return result


def _last_seen(seen: Callable[[], object]) -> object:
    try:
        return seen()
    except Exception as error:  # noqa: BLE001  the failed wait is reported in any case
        return repr(error)
