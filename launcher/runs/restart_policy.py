"""Restart policy of whole tasks: the decision by exit code, from a table, and the back-off. Pure.

Source: docs/architecture.md, "Exit codes". The trainer's parent restarts its training process in place; this policy applies when the
parent itself ends, and to programs that run without it.
"""

from enum import Enum, auto

from trainer.exit_codes import SIGNAL_BASE, ExitCode, RestartWhen

# Seconds, the same as for restarts in place (trainer/restart_in_place.py), whose first comes at once.
_FIRST_DELAY = 1.0
_LONGEST_DELAY = 30.0
# Seconds; after a longer run the next restart waits the first delay again.
_HEALTHY_AFTER = 60.0


class RestartDecision(Enum):
    """The decision about a task that has ended."""

    DONE = auto()
    RESTART = auto()  # counts against max_restarts
    RESTART_UNCOUNTED = auto()
    FAIL = auto()


_BY_CODE: dict[int, RestartDecision] = {
    ExitCode.DONE: RestartDecision.DONE,
    ExitCode.FINAL_FAILURE: RestartDecision.FAIL,
    ExitCode.PEER_LOST: RestartDecision.RESTART,
    ExitCode.STOPPED: RestartDecision.RESTART_UNCOUNTED,
}


def decide(code: int, *, restarts_used: int, max_restarts: int, when: RestartWhen = "on_failure") -> RestartDecision:
    """Return the decision about an exit with `code`, after `restarts_used` restarts that count.

    `when` is the role's `restart`; a backend may pass another value for tasks that run under the trainer's parent. `always` acts like
    `on_failure` here: after exit 0 the parent or the engine restarts.
    """
    if when == "exit_code" and 0 < code < SIGNAL_BASE:
        return RestartDecision.FAIL
    decision = _BY_CODE.get(code, RestartDecision.RESTART)
    return RestartDecision.FAIL if decision is RestartDecision.RESTART and restarts_used >= max_restarts else decision


def delay(previous: float, *, ran_for: float) -> float:
    """Return the seconds to wait before the next restart; `previous`: the wait before the last one, 0 for none."""
    if previous == 0 or ran_for > _HEALTHY_AFTER:
        return _FIRST_DELAY
    return min(_LONGEST_DELAY, 2 * previous)
