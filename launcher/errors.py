"""The exceptions of the launcher.

LauncherError            exit code 1: something outside the spec went wrong
    SpecError            exit code 2: the spec is wrong; carries every problem
    UsageError           exit code 2: the command line asks for what cannot be
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class LauncherError(Exception):
    """Names the thing, what is wrong and what to do next. `remedy` is one sentence for the user."""

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        """Return the message as it is now: more may have been added to it."""
        return self.message


class UsageError(LauncherError):
    """The command line asks for something that cannot be done as it is."""

    exit_code = 2


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the beginning of a remedy that names the known word nearest to `word`; empty where none is near."""
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]}? " if near else ""


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a spec. `line` and `column` count from 1; `path` is such as `roles.worker.replicas`."""

    file: str
    line: int
    column: int
    path: str
    message: str  # what is wrong, with the value
    expected: str = ""
    remedy: str = ""


class SpecError(LauncherError):
    """The spec, or another file that was named, is wrong; nothing was started or written."""

    exit_code = 2

    def __init__(self, problems: list[Problem], what: str = "the spec") -> None:
        super().__init__(f"{len(problems)} problem{'s' if len(problems) != 1 else ''} in {what}")
        self.problems = problems


def check_tasks(run: str, wanted: Iterable[str], known: Sequence[str]) -> None:
    """Raise UsageError for tasks that a run does not have."""
    if unknown := [task for task in wanted if task not in known]:
        remedy = f"{did_you_mean(unknown[0], known)}its tasks are {', '.join(known)}"
        raise UsageError(f"the run {run} has no task {', '.join(unknown)}", remedy)
