"""Ends a run before its last step: its metric no longer improves, or it has trained for `train.max_seconds`."""

import difflib
import math
import time
from collections.abc import Sequence
from pathlib import Path

from trainer.engine import evaluations, run_state
from trainer.engine.evaluations import EvaluationResult
from trainer.settings import EarlyStopping, Train, direction
from trainer.workloads.errors import WorkloadError


class EarlyStop:
    """Decides whether to end the run; the chief calls it between calls. Its state is in the run directory, for a restart."""

    def __init__(self, train: Train, run_dir: Path) -> None:
        self._train, self._run_dir = train, run_dir
        self._seconds_before = float(run_state.read(run_dir).get("trained_seconds") or 0.0) if train.max_seconds else 0.0
        self._began = time.monotonic()
        self._read_at: float | None = None  # when the evaluations that were read last had been written
        self._reason: str | None = None

    @property
    def trained_seconds(self) -> float:
        """Return for how long the run has trained, earlier attempts included."""
        return self._seconds_before + time.monotonic() - self._began

    def __call__(self, step: int) -> str | None:
        """Return why the run ends now, after `step`, or None. Later evaluations do not count: a lost attempt made them after its last save."""
        if self._train.max_seconds is not None and self.trained_seconds >= self._train.max_seconds:
            return f"it had trained for {self._train.max_seconds:g} s (train.max_seconds)"
        if self._train.early_stopping is not None and self._reason is None:
            modified = evaluations.modified_at(self._run_dir)
            if modified != self._read_at:  # an evaluator may have written it
                self._read_at = modified
                self._reason = no_improvement(
                    [result for result in evaluations.read(self._run_dir) if result.step <= step], self._train.early_stopping
                )
        return self._reason


def check_metric(rule: EarlyStopping, names: Sequence[str]) -> None:
    """Raise WorkloadError if the rule's metric is none of `names`, those of the evaluations."""
    if rule.metric not in names:
        matches = difflib.get_close_matches(rule.metric.removeprefix("val_"), names, n=1)  # the prefix of Keras's callbacks
        hint = f"did you mean {matches[0]!r}?" if matches else "name one of these"
        raise WorkloadError(f"train.early_stopping.metric is {rule.metric!r}; the evaluations have {', '.join(names)}; {hint}")


def no_improvement(results: Sequence[EvaluationResult], rule: EarlyStopping) -> str | None:
    """Return why to stop after these evaluations, oldest first, or None. A value that is not finite is no improvement."""
    sign = -1 if direction(rule.metric, rule.mode) == "max" else 1
    best, since = math.inf, 0
    for result in results:
        value = sign * result.metrics.get(rule.metric, math.nan)
        since += 1
        if value < best - (rule.min_delta if math.isfinite(best) else 0):
            best, since = value, 0
    if since < rule.patience:
        return None
    outcome = f"did not improve on {sign * best:.6g}" if math.isfinite(best) else "had no finite value"
    return f"{rule.metric} {outcome} in {since} evaluations (train.early_stopping)"
