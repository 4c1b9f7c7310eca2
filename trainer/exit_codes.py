"""The exit codes of every trainer task: one table for trainer, launcher and docs.

Source: docs/architecture.md, "Exit codes". 75 is EX_TEMPFAIL of sysexits(3), 143 is 128 + SIGTERM,
2 is what command-line programs return for wrong usage.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal


class ExitCode(IntEnum):
    """Why a task ended. Any other number is a failure, and counts against the restart limit."""

    DONE = 0
    FAILURE = 1
    FINAL_FAILURE = 2
    PEER_LOST = 75
    STOPPED = 143


# In shells and containers, exit codes from this on stand for a signal; orchestrators restart killed containers.
SIGNAL_BASE = 128
# When a program is restarted; a role's `restart: never` is `max_restarts: 0`. always: after every exit; on_failure: after failures; exit_code: only after signals (128 and above).
RestartWhen = Literal["always", "on_failure", "exit_code"]

# Reactions to a task that makes no progress.
OnStall = Literal["tell", "restart", "fail"]

SIGKILL_EXIT_CODE = SIGNAL_BASE + 9  # a shell's code for a process that was killed, for example out of memory

MEANING: dict[int, str] = {
    ExitCode.DONE: "done",
    ExitCode.FINAL_FAILURE: "a final failure; not started again; e.g. the configuration is wrong",
    ExitCode.PEER_LOST: "a peer was lost or not there; started again",
    ExitCode.STOPPED: "asked to stop; started again without counting",
}


def describe(code: int) -> str:
    """Describe why a task ended with `code`, without the consequence; negative numbers are signals, as in `subprocess`."""
    if code in MEANING:
        return MEANING[code].partition(";")[0]
    signal_number = -code if code < 0 else code - SIGNAL_BASE
    if code < 0 or SIGNAL_BASE < code < 160:
        import signal

        try:
            return f"killed by {signal.Signals(signal_number).name}"
        except ValueError:
            return f"killed by signal {signal_number}"
    return f"failed with exit code {code}"


def exit_code_of(return_code: int) -> int:
    """Return the exit code for a subprocess's return code, as shells and containers have it: 128 + n for signal n."""
    return return_code if return_code >= 0 else SIGNAL_BASE - return_code


def final_exit_code(code: int) -> int:
    """Return an exit code for a task that has failed with `code` and must not be restarted by its container engine or orchestrator.

    Codes that ask for another start become a plain failure: 75, and those from 128 on, as of a container that was killed or could
    not be started. All others stay.
    """
    return int(ExitCode.FAILURE) if code == ExitCode.PEER_LOST or code >= SIGNAL_BASE else code
