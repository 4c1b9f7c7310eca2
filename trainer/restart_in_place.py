"""The restart policy of a training process that has ended by itself: the table of exit codes as decisions. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainer.error_file import FINAL_PREFIX, START_STEP_PREFIX
from trainer.exit_codes import SIGKILL_EXIT_CODE, SIGNAL_BASE, ExitCode, RestartWhen, describe, exit_code_of, final_exit_code


@dataclass(frozen=True)
class RestartPolicy:
    """When, how often and how fast a process is started again. Times in seconds."""

    restart: RestartWhen = "on_failure"
    max_restarts: int = 10
    first_delay: float = 1.0  # before the second restart in a row; the first one has no delay
    longest_delay: float = 30.0
    healthy_after: float = 60.0  # after an attempt that ran longer the delays begin again
    # After an attempt of this length earlier restarts no longer count; math.inf if only a newer checkpoint has that effect.
    recovers_after: float = 600.0


@dataclass(frozen=True)
class RestartHistory:
    """The history of a task's attempts."""

    restarts: int = 0  # counted against the limit
    recent_exits: int = 0  # ended attempts, from the last healthy one on; it sets the delay
    fingerprint: str = ""  # of the last failure
    lost_from: int = -1  # the highest start step of the attempts that lost a peer
    repeats: int = 0  # of the last failure, in a row


@dataclass(frozen=True)
class RestartInPlace:
    """Start again after `delay` seconds; `history` is the history then."""

    delay: float
    cause: str
    history: RestartHistory


@dataclass(frozen=True)
class NoRestart:
    """Do not start again; exit with `exit_code`. `cause` is empty if the work is done."""

    exit_code: int
    cause: str = ""


_CAUSES = {
    int(ExitCode.DONE): "it was done, and `restart` is always",
    int(ExitCode.PEER_LOST): "a peer was lost",
    int(ExitCode.STOPPED): "the training process was asked to stop",
    SIGKILL_EXIT_CODE: "killed by SIGKILL (out of memory?)",
}


SAME_AGAIN = "it failed the same way twice in a row, with no step forward between, and is not started again"


def cause_of(code: int) -> str:
    """Describe why a process ended with `code`; negative numbers are signals, as in `subprocess`."""
    return _CAUSES.get(exit_code_of(code)) or describe(code)


def _with_code(code: int) -> str:
    """Describe why a process ended; add its exit code if the task exits with another one, and the cause does not name it."""
    shown = exit_code_of(code)
    cause = cause_of(code)
    return cause if final_exit_code(shown) == shown or str(shown) in cause else f"{cause}, exit code {shown}"


def decide_restart(
    code: int, ran_for: float, history: RestartHistory, policy: RestartPolicy, fingerprint: str = "", connected: float = 0.0
) -> RestartInPlace | NoRestart:
    """Decide what follows when a process that its parent did not ask to stop ended with `code` after `ran_for` seconds.

    No restart follows:
    - exit code 2, FINAL_FAILURE; a `fingerprint` that begins with FINAL_PREFIX has the cause;
    - the same `fingerprint` twice in a row, with no step forward between (user_errors.py, tracebacks.py); after an attempt of `recovers_after`
      or longer, only more than `max_restarts` repeats;
    - with `policy.restart: exit_code`, exit codes below 128;
    - a failure that counts, beyond `policy.max_restarts`.

    Not counted are:
    - a requested stop that did not come from the parent: exit code 143, or death by SIGTERM;
    - the end with DONE, if `policy.restart` is `always`;
    - a lost peer (75), if both hold: the attempt was `connected` to all peers for longer than `healthy_after`; its start step, in its `fingerprint`,
      is higher than that of every earlier attempt that lost a peer. Nodes come and go in a long run.
    """
    if code == ExitCode.DONE:
        return _restart(code, ran_for, history, policy) if policy.restart == "always" else NoRestart(ExitCode.DONE)
    if code == ExitCode.FINAL_FAILURE:
        return NoRestart(code, fingerprint[len(FINAL_PREFIX) :] if fingerprint.startswith(FINAL_PREFIX) else cause_of(code))
    if policy.restart == "exit_code" and 0 < code < SIGNAL_BASE:
        return NoRestart(final_exit_code(code), f"{_with_code(code)}; `restart: exit_code` makes exit codes below {SIGNAL_BASE} final")
    start_step = fingerprint.replace(START_STEP_PREFIX, "").strip() if code == ExitCode.PEER_LOST else ""
    lost_from = int(start_step) if start_step.isdecimal() else history.lost_from
    repeats = history.repeats + 1 if fingerprint and fingerprint == history.fingerprint else 0
    stopped = exit_code_of(code) == ExitCode.STOPPED
    if stopped or code == ExitCode.PEER_LOST:
        last_fingerprint, repeats = history.fingerprint, history.repeats  # a lost peer or a stop is no failure of this task's own
    elif repeats and (ran_for < policy.recovers_after or repeats > policy.max_restarts):
        return NoRestart(ExitCode.FINAL_FAILURE, SAME_AGAIN)
    else:
        last_fingerprint = fingerprint
    counted = not stopped and not (lost_from > history.lost_from and connected > policy.healthy_after)
    if counted and history.restarts >= policy.max_restarts:
        return NoRestart(final_exit_code(exit_code_of(code)), f"{_with_code(code)}; the limit of {policy.max_restarts} restarts is reached")
    after = replace(
        history,
        restarts=history.restarts + counted,
        fingerprint=last_fingerprint,
        lost_from=max(lost_from, history.lost_from),
        repeats=repeats,
    )
    return _restart(code, ran_for, after, policy)


def _restart(code: int, ran_for: float, history: RestartHistory, policy: RestartPolicy) -> RestartInPlace:
    exits_before = 0 if ran_for > policy.healthy_after else history.recent_exits
    # 2 ** 30 is past any longest delay; the exponent is bounded because a loop of uncounted restarts has no end.
    delay = min(policy.longest_delay, policy.first_delay * 2 ** min(exits_before - 1, 30)) if exits_before else 0.0
    return RestartInPlace(delay, cause_of(code), replace(history, recent_exits=exits_before + 1))
