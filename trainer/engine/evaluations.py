"""The run's evaluations: `evaluations.json` in the run directory, newest last. Written by the task that evaluates, read by any task.

The evaluator task writes it where there is one, else the chief: never both at a time.
"""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.engine.run_state import write_atomically
from trainer.events import finite

MAX_RETAINED = 1000  # how many of the newest stay: the file is written again each time


@dataclass(frozen=True)
class EvaluationResult:
    """Loss and metrics on the held-out set after global step `step`; `time` in seconds since the epoch.

    A value that was not finite is NaN here and null in the file.
    """

    step: int
    metrics: dict[str, float]
    time: float


def read(run_dir: Path) -> list[EvaluationResult]:
    """Return the run's evaluations, newest last; none if the file is missing or invalid."""
    try:
        entries = json.loads(path(run_dir).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [result for entry in entries if (result := _parse(entry))] if isinstance(entries, list) else []


def modified_at(run_dir: Path) -> float | None:
    """Return when the file was last written, in seconds since the epoch; None if there is none."""
    try:
        return path(run_dir).stat().st_mtime
    except OSError:
        return None


def append(run_dir: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Add an evaluation at `step`, atomically.

    Evaluations of `step` and later ones are dropped: training has resumed from an earlier checkpoint, and those models are gone.
    """
    before = [result for result in read(run_dir) if result.step < step]
    newest = [*before, EvaluationResult(step, dict(metrics), time.time())][-MAX_RETAINED:]
    lines = ",\n".join(json.dumps(finite(asdict(result)), allow_nan=False) for result in newest)
    write_atomically(path(run_dir), f"[\n{lines}\n]\n")


def path(run_dir: Path) -> Path:
    """Return the file."""
    return run_dir / "evaluations.json"


def _parse(entry: Any) -> EvaluationResult | None:
    try:
        metrics = {str(name): math.nan if value is None else float(value) for name, value in entry["metrics"].items()}
        return EvaluationResult(int(entry["step"]), metrics, float(entry["time"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
