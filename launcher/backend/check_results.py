"""The results of the checks of `launcher doctor`, a line each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from launcher.backend.model import ClusterRef
from launcher.errors import LauncherError
from launcher.spec.models import ClusterSpec


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"  # it may work, or could not be found out
    PROBLEM = "problem"  # a run will not work


@dataclass(frozen=True)
class CheckResult:
    """One thing that was examined: what, how it is, and where it is not well what to do."""

    level: Level
    what: str
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class CheckRequest:
    """The subject of an examination: where runs are to be, and whether that fits a spec where there is one."""

    spec: ClusterSpec | None
    cluster: ClusterRef
    runs: str


Check = Callable[[CheckRequest], Iterator[CheckResult]]


def ok(what: str, message: str) -> CheckResult:
    """Return that something is well."""
    return CheckResult(Level.OK, what, message)


def warning(what: str, message: str, remedy: str) -> CheckResult:
    """Return that something may not be well."""
    return CheckResult(Level.WARNING, what, message, remedy)


def problem(what: str, message: str, remedy: str) -> CheckResult:
    """Return that something is not well."""
    return CheckResult(Level.PROBLEM, what, message, remedy)


def of_error(what: str, error: LauncherError) -> CheckResult:
    """Return the error that an examination ended with."""
    return problem(what, error.message, error.remedy)
