"""The artifacts of a run, which `launcher get` copies: model, checkpoints, logs and results."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from launcher.errors import UsageError


class Artifact(StrEnum):
    """A part of a run's stored data."""

    MODEL = "model"
    CHECKPOINTS = "checkpoints"
    LOGS = "logs"
    RESULTS = "results"


# Artifact -> its directory in the run directory: the first of these that exists.
ARTIFACT_DIRECTORIES: dict[str, tuple[str, ...]] = {
    Artifact.MODEL: ("export/best", "export/last"),
    Artifact.CHECKPOINTS: ("checkpoints",),
    Artifact.LOGS: ("logs",),
    Artifact.RESULTS: ("results",),
}
_STORED_WHEN: dict[Artifact, str] = {
    Artifact.MODEL: "a model of your own is exported with its first evaluation, a built-in one with `train.export: {}` in the spec",
    Artifact.CHECKPOINTS: "the first one is saved as train.checkpoint says, and at the end",
    Artifact.LOGS: "they are written while it trains, unless train.summaries.every_steps is 0",
    Artifact.RESULTS: "a program writes them to $RUN_DIR/results",
}


@dataclass(frozen=True)
class ArtifactStream:
    """A directory of a run as a tar stream, whose first entry is the directory itself. `size` in bytes, if it is known in advance."""

    origin: str  # its location, as text for people
    chunks: Iterator[bytes]
    size: int | None = None


def still_running_error(run: str, on: str) -> UsageError:
    """Return the error for deleting the data of a running run."""
    return UsageError(f"the run {run} is running; its data was not deleted", f"stop it first: launcher down {run} --on {on}")


def missing_artifact_error(run: str, artifact: Artifact, existing: Iterable[str]) -> UsageError:
    """Return the error for a run without this artifact; `existing`: the artifacts that it has."""
    kinds = ", ".join(sorted(existing))
    remedy = f"it has {kinds}; {_STORED_WHEN[artifact]}" if kinds else _STORED_WHEN[artifact]
    return UsageError(f"{run} has no {artifact} yet", remedy)
