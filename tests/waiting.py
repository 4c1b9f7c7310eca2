"""A test's wait for something: it has a deadline, and fails with what was waited for and what was seen last."""

import time
from collections.abc import Callable
from typing import Any


def until(what: str, condition: Callable[[], Any], seconds: float = 60, *, told: Callable[[], object], every: float = 0.02) -> Any:
    """Return the condition's first true result. Fails after `seconds`, with `what` was waited for and what `told` returns then; looks `every` so many seconds."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}; seen last: {_seen(told)}"
        time.sleep(every)
    return result


def _seen(told: Callable[[], object]) -> object:
    try:
        return told()
    except Exception as error:  # noqa: BLE001  what was waited for is said all the same
        return repr(error)
