"""Kinds of data that a run has stored, and that `launcher get` copies."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from launcher.errors import UsageError


class Artifact(StrEnum):
    """A kind of what a run stores."""

    MODEL = "model"
    CHECKPOINTS = "checkpoints"
    LOGS = "logs"
    RESULTS = "results"


# Artifact -> its directory in the run directory: the first of these that is there.
ARTIFACT_DIRECTORIES: dict[str, tuple[str, ...]] = {
    Artifact.MODEL: ("export/best", "export/last"),
    Artifact.CHECKPOINTS: ("checkpoints",),
    Artifact.LOGS: ("logs",),
    Artifact.RESULTS: ("results",),
}
_COMES: dict[Artifact, str] = {
    Artifact.MODEL: "a model of one's own is exported with its first evaluation, a built-in one with `train.export: {}` in the spec",
    Artifact.CHECKPOINTS: "the first one is saved as train.checkpoint says, and at the end",
    Artifact.LOGS: "they are written while it trains, unless train.summaries.every_steps is 0",
    Artifact.RESULTS: "a program writes them to $RUN_DIR/results",
}


@dataclass(frozen=True)
class Stored:
    """A directory of a run as a tar stream, whose first entry is the directory itself. `size` in bytes, where it is known before."""

    origin: str  # where it is, for people
    chunks: Iterator[bytes]
    size: int | None = None


def still_running_error(run: str, on: str) -> UsageError:
    """Return the error of a run whose data is to be deleted while it runs."""
    return UsageError(f"the run {run} is running; its data was not deleted", f"stop it first: launcher down {run} --on {on}")


def missing_artifact(run: str, artifact: Artifact, there: Iterable[str]) -> UsageError:
    """Return the error of a run that has nothing of a kind; `there` are the kinds of which it has something."""
    known = ", ".join(sorted(there))
    remedy = f"it has {known}; {_COMES[artifact]}" if known else _COMES[artifact]
    return UsageError(f"{run} has no {artifact} yet", remedy)
