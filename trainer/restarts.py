"""What follows when a training process has ended by itself: the table of exit codes as decisions. Pure."""

import signal
from dataclasses import dataclass

from trainer.exit_codes import ExitCode, describe, final


@dataclass(frozen=True)
class Policy:
    """How often and how fast a process is started again. Times in seconds."""

    max_restarts: int = 10
    first_delay: float = 1.0
    longest_delay: float = 30.0
    healthy_after: float = 60.0  # an attempt that lived this long starts the delays from the first again


@dataclass(frozen=True)
class History:
    """What came before: restarts counted against the limit, attempts in a row that ended early, and how the last one failed."""

    restarts: int = 0
    early_ends: int = 0
    fingerprint: str = ""


@dataclass(frozen=True)
class Restart:
    """Start again after `delay` seconds; `history` is the history then."""

    delay: float
    cause: str
    history: History


@dataclass(frozen=True)
class End:
    """Start no more; leave with `exit_code`. `cause` is empty when the work is done."""

    exit_code: int
    cause: str = ""


# A process that was asked to stop by somebody else than us: SIGTERM, whether it had time to say 143 or not.
_UNCOUNTED = frozenset({int(ExitCode.STOPPED), -signal.SIGTERM})
_CAUSES = {
    int(ExitCode.WRONG_CONFIGURATION): "the configuration is wrong",
    int(ExitCode.PEER_LOST): "a peer was lost",
    int(ExitCode.STOPPED): "the training process was asked to stop",
    -signal.SIGTERM: "the training process was asked to stop",
    -signal.SIGKILL: "killed by SIGKILL (out of memory?)",
    128 + signal.SIGKILL: "killed by SIGKILL (out of memory?)",
}


SAME_AGAIN = "it failed the same way twice in a row, with no step forward between, and is not started again"


def cause_of(code: int) -> str:
    """Say in words why a process ended with `code`; negative numbers are signals, as in `subprocess`."""
    return _CAUSES.get(code) or describe(code)


def exit_code_of(code: int) -> int:
    """Return the exit code that tells of `code`: 128 + n for signal n, as a shell has it."""
    return 128 - code if code < 0 else code


def _with_code(code: int) -> str:
    """Say why a process ended, and with which exit code where the task is not to leave with it."""
    told = exit_code_of(code)
    cause = cause_of(code)
    return cause if final(told) == told or str(told) in cause else f"{cause}, exit code {told}"


def judge(code: int, lived: float, history: History, policy: Policy, fingerprint: str = "") -> Restart | End:
    """Decide what follows when a process that nobody asked to stop ended with `code` after `lived` seconds.

    Two failures with one `fingerprint` are the same, with no step forward between (user_errors.py): a third would be too.
    """
    if code == ExitCode.DONE:
        return End(ExitCode.DONE)
    if code == ExitCode.WRONG_CONFIGURATION:
        return End(code, cause_of(code))
    if fingerprint and fingerprint == history.fingerprint:
        return End(ExitCode.WRONG_CONFIGURATION, SAME_AGAIN)
    # A peer that failed first, or a stop, says nothing of this task's own failure.
    kept = history.fingerprint if code in _UNCOUNTED | {int(ExitCode.PEER_LOST)} else ""
    counted = code not in _UNCOUNTED
    if counted and history.restarts >= policy.max_restarts:
        return End(final(exit_code_of(code)), f"{_with_code(code)}; the limit of {policy.max_restarts} restarts is reached")
    early = 0 if lived > policy.healthy_after else history.early_ends
    # 2 ** 30 is past any longest delay; the exponent is bounded because a loop of uncounted restarts has no end.
    delay = min(policy.longest_delay, policy.first_delay * 2 ** min(early, 30))
    return Restart(delay, cause_of(code), History(history.restarts + counted, early + 1, fingerprint or kept))
