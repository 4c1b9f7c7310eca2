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

MAX_RETAINED = 1000  # the newest that stay: the file is written again each time


@dataclass(frozen=True)
class EvaluationResult:
    """Loss and metrics on the held-out set after global step `step`; `time` in seconds since the epoch.

    A value that was not finite is NaN here and null in the file.
    """

    step: int
    metrics: dict[str, float]
    time: float


def read(run_dir: Path) -> list[EvaluationResult]:
    """Return what has been evaluated, newest last; nothing where there is no such file or it is not one."""
    try:
        found = json.loads(path(run_dir).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [one for entry in found if (one := _parse(entry))] if isinstance(found, list) else []


def changed(run_dir: Path) -> float | None:
    """Return when the file was last written, in seconds since the epoch; None where there is none."""
    try:
        return path(run_dir).stat().st_mtime
    except OSError:
        return None


def append(run_dir: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Add an evaluation at `step`, in one step for readers.

    Evaluations of `step` and later ones are dropped: training went back to an earlier checkpoint, and those models are gone.
    """
    before = [one for one in read(run_dir) if one.step < step]
    newest = [*before, EvaluationResult(step, dict(metrics), time.time())][-MAX_RETAINED:]
    lines = ",\n".join(json.dumps(finite(asdict(one)), allow_nan=False) for one in newest)
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
