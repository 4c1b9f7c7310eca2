"""The exceptions of the launcher, and the known word that a wrong one was probably meant to be.

LauncherError                exit code 1: something outside the spec went wrong
    SpecError                exit code 2: the spec is wrong; carries every problem
    UsageError               exit code 2: the command line asks for something impossible
    StartInterruptedError    exit code 143: a run was asked to stop before its tasks had started
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainer.exit_codes import ExitCode


class LauncherError(Exception):
    """An error for the user: `message` names the thing and what is wrong, `remedy` says in one sentence what to do next."""

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        """Return the current message: callers may have extended it."""
        return self.message


class UsageError(LauncherError):
    """The command line asks for something impossible."""

    exit_code = 2


class StartInterruptedError(LauncherError):
    """A run was asked to stop before its tasks had started."""

    exit_code = int(ExitCode.STOPPED)

    def __init__(self, run: str) -> None:
        super().__init__(f"the run {run} was not started: its start was interrupted", "start it with `launcher up`")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the beginning of a remedy that names the known word most similar to `word`; empty if none is similar."""
    meant = nearest(word, known)
    return f"did you mean {meant}? " if meant else ""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` most probably means, or None when nothing is near.

    Upper case, dashes and underscores do not count as differences.
    """
    import difflib

    by_fold = {_fold(name): name for name in known}
    matches = difflib.get_close_matches(_fold(word), by_fold, n=1)
    return by_fold[matches[0]] if matches else None


def _fold(word: str) -> str:
    return word.lower().replace("-", "_")


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a spec. `line` and `column` count from 1; `path` is e.g. `roles.worker.replicas`."""

    file: str
    line: int
    column: int
    path: str
    message: str  # what is wrong, with the value
    expected: str = ""
    remedy: str = ""


class SpecError(LauncherError):
    """The spec, or another input file, is wrong; nothing was started or written."""

    exit_code = 2

    def __init__(self, problems: list[Problem], what: str = "the spec") -> None:
        super().__init__(f"{len(problems)} problem{'s' if len(problems) != 1 else ''} in {what}")
        self.problems = problems


def check_tasks(run: str, tasks: Iterable[str], known: Sequence[str]) -> None:
    """Raise UsageError for tasks that a run does not have."""
    if unknown := [task for task in tasks if task not in known]:
        remedy = f"{did_you_mean(unknown[0], known)}its tasks are {', '.join(known)}"
        raise UsageError(f"the run {run} has no task {', '.join(unknown)}", remedy)
