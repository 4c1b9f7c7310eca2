"""Exports models for use elsewhere: the best so far, `export/best` in the run directory, and `export/last` where nothing was evaluated.

Each is a link to a directory beside it and is replaced in one step, so a reader finds a whole model. The directory before stays until
the next one: who has just opened it can finish reading. Links are relative, so that they hold wherever the run directory is mounted.
"""

import json
import math
import operator
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainer.events import Reporter, finite
from trainer.settings import Export, direction
from trainer.workloads.errors import WorkloadError

_BETTER: dict[str, Callable[[float, float], bool]] = {"max": operator.gt, "min": operator.lt}


BEST, LAST = "best", "last"


def _save_keras(model: keras.Model, path: Path) -> str:
    with _fresh_optimizer(model) as left_out:
        model.save(str(path))
    return left_out


def _save_saved_model(model: keras.Model, path: Path) -> str:
    model.export(str(path), format="tf_saved_model", verbose=False)
    return ""


_LONGEST = 200  # characters of an error

# Format -> what it is called in the directory, and what writes it and returns a notice of what it had to leave out.
_FORMATS: dict[str, tuple[str, Callable[[keras.Model, Path], str]]] = {
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

    It writes with `model`, which has its own weights again afterwards. At most the `share` of time goes into writing, which takes a second
    or so, while early in training each model is the best so far: weights that come too soon wait in memory for the next better ones or `flush`.
    """

    def __init__(self, export: Export, run_dir: Path, names: Sequence[str], model: keras.Model, report: Reporter, *, share: float) -> None:
        """Take up an earlier attempt's best. `names` are those of the workload's measures, and are needed where the settings name a metric.

        Raises:
            WorkloadError: the settings' metric is none of `names`, or it is not known whether more or less of it is better.
        """
        self._export = export
        # By loss or accuracy nothing can be wrong: which it is shows at the first evaluation, so that the start need not find out.
        self._goal = _goal(export, names) if export.metric or names else None
        self._share = share
        self._files = _Files(export, run_dir, model, report)
        self._waiting: _Candidate | None = None
        self._not_before = 0.0
        self._best: float | None = None
        self._told = self._failed = False
        if self._goal:
            self._best = self._files.value(*self._goal)
        self._files.clear(BEST)

    @property
    def is_known(self) -> bool:
        """Whether there is a best model, written or not."""
        return self._best is not None

    def offer(self, step: int, metrics: Mapping[str, float], weights: Sequence[keras.Variable]) -> None:
        """Take over `weights`, all of the model's, if the model with these metrics is the best so far; write it if it is time.

        What could not be written before is tried again, whatever the metrics.
        """
        if self._goal is None:
            self._goal = _goal(self._export, tuple(metrics))
            self._best = self._files.value(*self._goal)
        metric, mode = self._goal
        value = metrics[metric]
        if math.isfinite(value) and (self._best is None or _BETTER[mode](value, self._best)):
            self._best = value
            self._waiting = _Candidate(step, value, dict(metrics), [keras.ops.convert_to_numpy(w) for w in weights])
        elif not self._failed:
            return
        if time.monotonic() >= self._not_before:
            self.flush()

    def flush(self) -> None:
        """Write what waits. An error is reported as a notice: training is worth more than an export."""
        candidate, self._waiting = self._waiting, None
        if candidate is None or self._goal is None:
            return
        began, self._failed = time.monotonic(), False
        metric, mode = self._goal
        facts = {"step": candidate.step, "metric": metric, "mode": mode, "value": candidate.value, "metrics": candidate.metrics}
        try:
            self._told = self._files.write(BEST, facts, candidate.weights) or self._told
            self._files.remove(LAST)
        except OSError as error:
            self._waiting, self._failed = candidate, True  # the disk may have room again
            self._files.tell(f"the best model, of step {candidate.step}, could not be exported to {self._files.root}: {error}")
        ended = time.monotonic()
        self._not_before = ended + (ended - began) * (1 / self._share - 1)

    def finish(self) -> None:
        """Write what waits, and report the best model where an earlier attempt has written it."""
        self.flush()
        if not self._told:
            self._files.tell_of(BEST)


def write_last(export: Export, run_dir: Path, step: int, metrics: Mapping[str, float], model: keras.Model, report: Reporter) -> None:
    """Write `export/last` with the weights that `model` has at `step`, unless there is a best model. An error is reported as a notice."""
    files = _Files(export, run_dir, model, report)
    if _target(files.root / BEST) is not None:
        return
    files.clear(LAST)
    weights = [keras.ops.convert_to_numpy(w) for w in model.weights]
    try:
        files.write(LAST, {"step": step, "metric": None, "mode": None, "value": None, "metrics": dict(metrics)}, weights)
    except OSError as error:
        files.tell(f"the model of step {step} could not be exported to {files.root}: {error}")


class _Files:
    """The exported models of one run, below `<run_dir>/export`, each called by a link."""

    def __init__(self, export: Export, run_dir: Path, model: keras.Model, report: Reporter) -> None:
        self.root = run_dir / "export"
        self._model, self._report = model, report
        # A model that is none of Keras's kinds may know that only some formats can hold it; what is asked for by name is tried.
        known: Sequence[str] = getattr(model, "export_formats", export.formats)
        self._formats = [name for name in export.formats if "formats" in export.model_fields_set or name in known]
        self._told: set[str] = set()

    def write(self, called: str, facts: Mapping[str, Any], weights: Sequence[Any]) -> bool:
        """Write the model with these weights, and let the link `called` lead to it; return whether any format could be written.

        Raises:
            OSError: the disk does not take it.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        step = facts["step"]
        place = Path(tempfile.mkdtemp(prefix=f"{called}-{step}-", dir=self.root))
        place.chmod(0o755)  # as other directories are; temporary ones are private
        with _holding(self._model.weights, weights):
            written = [name for name in self._formats if self._try(name, place)]
        if not written:
            shutil.rmtree(place)
            return False
        facts = {**facts, "formats": written, "time": time.time()}
        (place / "metrics.json").write_text(json.dumps(finite(facts), indent=2) + "\n", encoding="utf-8")
        link, before = self.root / called, _target(self.root / called)
        new = self.root / f".{place.name}"
        new.symlink_to(place.name)
        new.replace(link)
        self.clear(called, before)
        self._report("exported", step=step, path=str(link), metric=facts["metric"], value=facts["value"])
        return True

    def _try(self, name: str, place: Path) -> bool:
        file, save = _FORMATS[name]
        try:
            left_out = save(self._model, place / file)
        except (OSError, tf.errors.OpError) as error:  # TensorFlow writes a SavedModel, and has errors of its own
            shutil.rmtree(place, ignore_errors=True)
            raise error if isinstance(error, OSError) else OSError(_line(error)) from error
        except Exception as error:  # noqa: BLE001 - whatever a user's own layer raises when it is to be saved
            why = f"{type(error).__name__}: {_line(error)}"
            self.tell(f"the model cannot be exported as {name}: {why}; train.export.formats says what is written")
            _remove(place / file)
            return False
        if left_out:
            self.tell(left_out)
        return True

    def tell(self, message: str) -> None:
        """Report a notice, once."""
        if message not in self._told:
            self._told.add(message)
            self._report("notice", message=message)

    def tell_of(self, called: str) -> None:
        """Report the model that is there, if one is."""
        facts = self._facts(called)
        if isinstance(facts.get("step"), int):
            fields = {key: facts.get(key) for key in ("metric", "value")}
            self._report("exported", step=facts["step"], path=str(self.root / called), **fields)

    def value(self, metric: str, mode: str) -> float | None:
        """Return the value of the best model that is there, if it was chosen by this measure."""
        facts = self._facts(BEST)
        try:
            return float(facts["value"]) if (facts["metric"], facts["mode"]) == (metric, mode) else None
        except (KeyError, TypeError, ValueError):
            return None

    def _facts(self, called: str) -> dict[str, Any]:
        try:
            facts = json.loads((self.root / called / "metrics.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def clear(self, called: str, *keep: Path | None) -> None:
        """Remove what was exported before what the link leads to and `keep`, and what a killed attempt left half written."""
        keep = (*keep, _target(self.root / called))
        for path in self.root.glob(f"{called}-*"):
            if path not in keep:
                shutil.rmtree(path, ignore_errors=True)
        for path in self.root.glob(f".{called}-*"):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def remove(self, called: str) -> None:
        """Remove an exported model and its link."""
        (self.root / called).unlink(missing_ok=True)
        self.clear(called)


def _goal(export: Export, names: Sequence[str]) -> tuple[str, str]:
    metric = export.metric or ("accuracy" if "accuracy" in names else "loss")
    if metric not in names:
        raise WorkloadError(f"train.export.metric is {metric!r}; expected one of {', '.join(names)}, which this workload measures")
    better = direction(metric, export.mode)
    if better is None:
        raise WorkloadError(
            f"train.export.metric is {metric!r}, and its name does not show whether more or less of it is better;"
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
def _fresh_optimizer(model: keras.Model) -> Iterator[str]:
    """Let a compiled model have an optimizer inside that has taken no step: what is saved goes on from its weights alone.

    Yields a notice where the model is not compiled inside, as what its `compile` was given could not be read again; else nothing.
    """
    if not getattr(model, "compiled", False):
        yield ""
        return
    fresh, problem = _fresh(model)
    # Past Keras's own way of setting it, which would make it a part of the model's checkpoints.
    attributes = vars(model)
    own, attributes["optimizer"] = model.optimizer, fresh
    model.compiled = not problem
    try:
        yield f"the Keras file is exported without loss, metrics and optimizer: {problem}" if problem else ""
    finally:
        model.compiled, attributes["optimizer"] = True, own


def _fresh(model: keras.Model) -> tuple[keras.optimizers.Optimizer | None, str]:
    """Return a new optimizer like a compiled model's, or why what its `compile` was given cannot be saved."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns of a lambda
            given = json.dumps(model.get_compile_config(), default=str)
        if '"__lambda__"' in given:
            return None, "compile was given a lambda, which Keras does not load again; give it a function with a name"
        own = model.optimizer
        fresh = None if own is None else type(own).from_config(own.get_config())
        if fresh is not None:
            fresh.build(model.trainable_variables)
    except Exception as error:  # noqa: BLE001 - whatever a user's own loss or optimizer raises
        return None, f"{type(error).__name__}: {_line(error)}"
    return fresh, ""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:_LONGEST]  # Keras breaks its lines within sentences
