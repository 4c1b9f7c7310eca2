"""The results of the checks of `launcher doctor`, one line each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from launcher.backend.model import ClusterRef
from launcher.errors import LauncherError
from launcher.spec.models import ClusterSpec


class Level(StrEnum):
    """The severity of a result."""

    OK = "ok"
    WARNING = "warning"  # a run may work, or the check was not possible
    PROBLEM = "problem"  # a run will not work


@dataclass(frozen=True)
class CheckResult:
    """The result of one check: the subject (`what`), its state, and the remedy if it is not ok."""

    level: Level
    what: str
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class CheckRequest:
    """The input of a backend's checks: where runs would be stored, in which cluster, and for which spec, if any."""

    spec: ClusterSpec | None
    cluster: ClusterRef
    runs: str


Check = Callable[[CheckRequest], Iterator[CheckResult]]


def ok(what: str, message: str) -> CheckResult:
    """Return the result of a check that passed."""
    return CheckResult(Level.OK, what, message)


def warning(what: str, message: str, remedy: str) -> CheckResult:
    """Return the result of a check that found a possible problem."""
    return CheckResult(Level.WARNING, what, message, remedy)


def problem(what: str, message: str, remedy: str) -> CheckResult:
    """Return the result of a check that failed."""
    return CheckResult(Level.PROBLEM, what, message, remedy)


def error_result(what: str, error: LauncherError) -> CheckResult:
    """Return the result of a check that ended with an error."""
    return problem(what, error.message, error.remedy)
