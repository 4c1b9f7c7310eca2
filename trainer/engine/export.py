"""Exports the best model so far for serving: `export/best` in the run directory.

`export/best` is a link to a directory beside it and is replaced in one step, so a reader finds a whole model. The
directory before stays until the next one: who has just opened it can finish reading.
"""

import json
import math
import operator
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from trainer.events import Reporter
from trainer.settings import Export, direction
from trainer.workloads.errors import WorkloadError

_BETTER: dict[str, Callable[[float, float], bool]] = {"max": operator.gt, "min": operator.lt}


def _save_keras(model: keras.Model, path: Path) -> None:
    with _uncompiled(model):
        model.save(str(path))


def _save_saved_model(model: keras.Model, path: Path) -> None:
    model.export(str(path), format="tf_saved_model", verbose=False)


_LONGEST = 200  # characters of an error

# Format -> what it is called in the directory, and what writes it.
_FORMATS: dict[str, tuple[str, Callable[[keras.Model, Path], None]]] = {
    "keras": ("model.keras", _save_keras),
    "saved_model": ("saved_model", _save_saved_model),
}


@dataclass(frozen=True)
class _Candidate:
    step: int
    value: float
    metrics: dict[str, float]
    weights: list[Any]


class BestModel:
    """Keeps the best model that it is offered, and writes it, weights without the optimizer's state.

    `model` gives a model to write with, asked for at the first write; what it holds is put back afterwards. At most the
    `share` of time goes into writing, which takes a second or so, while early in training each model is the best so far:
    weights that come too soon wait in memory for the next better ones or `flush`.
    """

    def __init__(
        self, export: Export, run_dir: Path, names: Sequence[str], model: Callable[[], keras.Model], report: Reporter, *, share: float
    ) -> None:
        """Take up an earlier attempt's best.

        Raises:
            WorkloadError: the settings' metric is none of `names`, or it is not known whether more or less of it is better.
        """
        self._metric, self._mode = _goal(export, names)
        self._formats, self._root, self._model, self._report = export.formats, run_dir / "export", model, report
        self._share = share
        self._made: keras.Model | None = None
        self._waiting: _Candidate | None = None
        self._not_before = 0.0
        self._told: set[str] = set()
        self._best = self._written()
        self._clear(_target(self._root / "best"))

    def offer(self, step: int, metrics: Mapping[str, float], weights: Sequence[keras.Variable]) -> None:
        """Take over `weights`, all of the model's, if the model with these metrics is the best so far; write it if it is time."""
        value = metrics[self._metric]
        if not math.isfinite(value) or (self._best is not None and not _BETTER[self._mode](value, self._best)):
            return
        self._best = value
        self._waiting = _Candidate(step, value, dict(metrics), [keras.ops.convert_to_numpy(w) for w in weights])
        if time.monotonic() >= self._not_before:
            self.flush()

    def flush(self) -> None:
        """Write what waits. What goes wrong is told as a notice: training is worth more than an export."""
        candidate, self._waiting = self._waiting, None
        if candidate is None:
            return
        began = time.monotonic()
        try:
            self._write(candidate)
        except OSError as error:
            self._waiting = candidate  # the disk may have room again
            self._tell(f"the best model, of step {candidate.step}, could not be exported to {self._root}: {error}")
        ended = time.monotonic()
        self._not_before = ended + (ended - began) * (1 / self._share - 1)

    def _write(self, candidate: _Candidate) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f"best-{candidate.step}-", dir=self._root))
        place.chmod(0o755)  # as other directories are; temporary ones are private
        if self._made is None:
            self._made = self._model()
        with _holding(self._made.weights, candidate.weights):
            written = [name for name in self._formats if self._try(name, self._made, place)]
        if not written:
            shutil.rmtree(place)
            return
        facts = {
            "step": candidate.step,
            "metric": self._metric,
            "mode": self._mode,
            "value": candidate.value,
            "metrics": candidate.metrics,
            "formats": written,
            "time": time.time(),
        }
        (place / "metrics.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        best = self._root / "best"
        before = _target(best)
        link = self._root / f".{place.name}"
        link.symlink_to(place.name)
        link.replace(best)
        self._clear(place, before)
        self._report("exported", step=candidate.step, path=str(best), metric=self._metric, value=candidate.value)

    def _try(self, name: str, model: keras.Model, place: Path) -> bool:
        file, save = _FORMATS[name]
        try:
            save(model, place / file)
        except OSError:
            shutil.rmtree(place)
            raise
        except Exception as error:  # noqa: BLE001 - whatever a user's own layer raises when it is to be saved
            why = " ".join(str(error).split())[:_LONGEST]  # Keras breaks its lines within sentences
            self._tell(f"the model cannot be exported as {name}: {type(error).__name__}: {why}; train.export.formats says what is written")
            _remove(place / file)
            return False
        return True

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            self._report("notice", message=message)

    def _written(self) -> float | None:
        """Return the value of the model that is there, if it was chosen by the same measure."""
        try:
            facts = json.loads((self._root / "best" / "metrics.json").read_text(encoding="utf-8"))
            same = (facts["metric"], facts["mode"]) == (self._metric, self._mode)
            return float(facts["value"]) if same else None
        except (OSError, KeyError, TypeError, ValueError):
            return None

    def _clear(self, *keep: Path | None) -> None:
        """Remove what was exported before, and what a killed attempt left half written."""
        for path in self._root.glob("best-*"):
            if path not in keep:
                shutil.rmtree(path, ignore_errors=True)
        for path in self._root.glob(".best-*"):
            path.unlink(missing_ok=True)


def _goal(export: Export, names: Sequence[str]) -> tuple[str, str]:
    metric = export.metric or ("accuracy" if "accuracy" in names else "loss")
    if metric not in names:
        raise WorkloadError(f"train.export.metric is {metric!r}; expected one of {', '.join(names)}, which this workload measures")
    better = direction(metric, export.mode)
    if better is None:
        raise WorkloadError(
            f"train.export.metric is {metric!r}, and its name does not tell whether more or less of it is better;"
            " add train.export.mode: max, or min"
        )
    return metric, better


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _target(link: Path) -> Path | None:
    try:
        return link.parent / link.readlink()
    except OSError:
        return None


@contextmanager
def _holding(variables: Sequence[keras.Variable], values: Sequence[Any]) -> Iterator[None]:
    """Give the variables other values inside; afterwards they have their own again."""
    own = [keras.ops.convert_to_numpy(v) for v in variables]
    _assign(variables, values)
    try:
        yield
    finally:
        _assign(variables, own)


def _assign(variables: Sequence[keras.Variable], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


@contextmanager
def _uncompiled(model: keras.Model) -> Iterator[None]:
    """Hide the optimizer and the loss of a compiled model: whoever serves it needs neither them nor the code they are made of."""
    if not getattr(model, "compiled", False):
        yield
        return
    optimizer = model.optimizer
    model.compiled, model.optimizer = False, None
    try:
        yield
    finally:
        model.compiled, model.optimizer = True, optimizer
