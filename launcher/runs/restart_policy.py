"""Restart policy of whole tasks: what follows from an exit, by a table, and the back-off. Pure.

Source: docs/architecture.md, "Exit codes". The trainer restarts its training process in place; this is for when the
trainer's own parent process ends, and for programs that run without it.
"""

from enum import Enum, auto

from trainer.exit_codes import SIGNAL_BASE, ExitCode, RestartWhen

# In seconds, as for restarts in place (trainer/restarts.py), except that the first of those comes at once.
FIRST_DELAY = 1.0
LONGEST_DELAY = 30.0
# A task that ran this long was well: its next restart waits the first delay again.
HEALTHY_AFTER = 60.0


class RestartDecision(Enum):
    """The decision about a task that has ended."""

    DONE = auto()
    RESTART = auto()  # counts against max_restarts
    RESTART_UNCOUNTED = auto()
    FAIL = auto()


_BY_CODE: dict[int, RestartDecision] = {
    ExitCode.DONE: RestartDecision.DONE,
    ExitCode.WRONG_CONFIGURATION: RestartDecision.FAIL,
    ExitCode.PEER_LOST: RestartDecision.RESTART,
    ExitCode.STOPPED: RestartDecision.RESTART_UNCOUNTED,
}


def exit_code(return_code: int) -> int:
    """Return the exit code as shells and containers tell it: 128 + the signal's number, where subprocess has its negative."""
    return return_code if return_code >= 0 else 128 - return_code


def decide(code: int, *, restarts_used: int, max_restarts: int, when: RestartWhen = "on_failure") -> RestartDecision:
    """Return what follows from `code` when `restarts_used` were used up before.

    `when` is the role's `restart`; a backend may pass another value for tasks that run under the trainer's parent.
    """
    if when == "exit_code" and 0 < code < SIGNAL_BASE:
        return RestartDecision.FAIL
    follows = _BY_CODE.get(code, RestartDecision.RESTART)
    return RestartDecision.FAIL if follows is RestartDecision.RESTART and restarts_used >= max_restarts else follows


def delay(previous: float, *, ran_for: float) -> float:
    """Return seconds to wait before the next restart; `previous` is what the last one waited, 0 for none."""
    if previous == 0 or ran_for >= HEALTHY_AFTER:
        return FIRST_DELAY
    return min(LONGEST_DELAY, 2 * previous)
