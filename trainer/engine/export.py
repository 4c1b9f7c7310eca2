"""Exports models for use elsewhere: the best so far, `export/best` in the run directory, and `export/last` where nothing was evaluated.

Each is a link to a directory beside it and is replaced in one step, so a reader finds a whole model. The directory before stays until
the next one: who has just opened it can finish reading. Links are relative, so that they hold wherever the run directory is mounted.

A model is saved in the task's temporary directory, and a thread of its own takes it to the run directory, whose volume may hang or be full.
Tables that are spread over servers are not saved before: that thread has their rows from there, see `exported_tables`.
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
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainer.engine.embeddings.exported_tables import ExportedModel
from trainer.engine.embeddings.spread_tables import Tables
from trainer.engine.file_writer import FileWriter
from trainer.engine.session import PeerLostError
from trainer.events import Reporter, finite
from trainer.settings import Export, direction
from trainer.workloads.errors import WorkloadError

_BETTER: dict[str, Callable[[float, float], bool]] = {"max": operator.gt, "min": operator.lt}


BEST, LAST = "best", "last"
_EXPORTS = "export"  # the directory of both
_ONCE_MORE = 10.0  # seconds at the end for what a volume did not take
_SILENT = 10.0  # after which rows are no longer written: training has gone on meanwhile


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

    It saves with `model`, which has its own weights again afterwards. At most the `share` of time goes into that, which takes a second
    or so, while early in training each model is the best so far: weights that come too soon, or while the ones before are not written
    yet, wait in memory for the next evaluation or the end. Rows of spread tables cannot wait: a model that comes too soon is
    passed over, unless it is that of the end.
    """

    def __init__(
        self,
        export: Export,
        run_dir: Path,
        names: Sequence[str],
        model: keras.Model,
        report: Reporter,
        *,
        share: float,
        tables: Tables | None = None,
    ) -> None:
        """Take up an earlier attempt's best. `names` are those of the workload's measures, and are needed where the settings name a metric.

        `tables` are the model's that are spread over servers.

        Raises:
            WorkloadError: the settings' metric is none of `names`, or it is not known whether more or less of it is better.
        """
        self._export = export
        # By loss or accuracy nothing can be wrong: which it is shows at the first evaluation, so that the start need not find out.
        self._goal = _goal(export, names) if export.metric or names else None
        self._share = share
        self._files = _Files(export, run_dir, BEST, model, report, tables)
        self._tables = tables
        self._late: _Candidate | None = None
        self._began = 0.0
        self._waiting: _Candidate | None = None
        self._not_before = 0.0
        self._best = self._files.value(*self._goal) if self._goal else None

    @property
    def is_known(self) -> bool:
        """Whether there is a best model, written or not."""
        return self._best is not None

    def offer(self, step: int, metrics: Mapping[str, float], weights: Sequence[keras.Variable]) -> None:
        """Take over `weights`, all of the model's, if the model with these metrics is the best so far; save what waits if it is time."""
        if self._goal is None:
            self._goal = _goal(self._export, tuple(metrics))
            self._best = self._files.value(*self._goal)
        metric, mode = self._goal
        value = metrics[metric]
        if self._tables and self._files.is_idle:
            self._best = self._files.value(metric, mode)  # what was not written is not tried again
        self._late = None
        if math.isfinite(value) and (self._best is None or _BETTER[mode](value, self._best)):
            candidate = _Candidate(step, value, dict(metrics), [keras.ops.convert_to_numpy(w) for w in weights])
            if self._tables and not self._may_save():
                self._late = candidate
            else:
                self._best, self._waiting = value, candidate
        if self._may_save():
            self._save()
        if self._tables and self._tables.held_while_saved:
            self._files.complete()

    def _may_save(self) -> bool:
        """Return whether it is time; with tables, of what it takes to write them, too."""
        if not self._tables:
            return time.monotonic() >= self._not_before
        return self._files.is_idle and time.monotonic() >= self._began + (self._files.ended - self._began) / self._share

    def _save(self) -> None:
        """Save what waits, unless the one before is still to be written. An error is reported as a notice: training is worth more."""
        candidate = self._waiting
        if candidate is None or self._goal is None or not self._files.is_idle:
            return
        began = self._began = time.monotonic()
        metric, mode = self._goal
        facts = {"step": candidate.step, "metric": metric, "mode": mode, "value": candidate.value, "metrics": candidate.metrics}
        if self._files.save(facts, candidate.weights) or self._tables:
            self._waiting = None
        ended = time.monotonic()
        self._not_before = ended + (ended - began) * (1 / self._share - 1)

    def wait(self, seconds: float) -> None:
        """Wait until what was saved is written, for so long at most; a write that fails is not waited for, one that hangs is."""
        self._files.wait(seconds)

    def finish(self, seconds: float, step: int | None = None) -> None:
        """Save what waits and `wait` for it, and report the best model where an earlier attempt has written it.

        Where `step` is that of the last offer, rows of spread tables are still those that were offered.
        """
        end = time.monotonic() + seconds
        self.wait(seconds)
        if self._late and self._late.step == step:
            self._waiting = self._late
        self._save()
        self._files.close(max(0.0, end - time.monotonic()))


def write_last(
    export: Export,
    run_dir: Path,
    step: int,
    metrics: Mapping[str, float],
    model: keras.Model,
    report: Reporter,
    *,
    seconds: float,
    tables: Tables | None = None,
) -> None:
    """Write `export/last` with the weights that `model` has at `step`, unless there is a best model, waiting for `seconds` at most.

    An error is reported as a notice.
    """
    if _target(run_dir / _EXPORTS / BEST) is not None:
        return
    files = _Files(export, run_dir, LAST, model, report, tables)
    weights = [keras.ops.convert_to_numpy(w) for w in model.weights]
    files.save({"step": step, "metric": None, "mode": None, "value": None, "metrics": dict(metrics)}, weights)
    files.close(seconds)


class _Files:
    """The exported models of one run that are `called` alike, below `<run_dir>/export`."""

    def __init__(
        self, export: Export, run_dir: Path, called: str, model: keras.Model, report: Reporter, tables: Tables | None = None
    ) -> None:
        """Remove what a killed attempt left half written."""
        self._root, self._called = run_dir / _EXPORTS, called
        self._link = self._root / called
        self._model, self._report = model, report
        # A model that is none of Keras's kinds may know that only some formats can hold it; what is asked for by name is tried.
        known: Sequence[str] = getattr(model, "export_formats", export.formats)
        self._formats = [name for name in export.formats if "formats" in export.model_fields_set or name in known]
        self._tables = tables
        if tables:  # see exported_tables.left_out
            self._formats = [name for name in self._formats if name == "saved_model"]
        self._exported: ExportedModel | None = None  # a model whose rows are to be written
        self.ended = self._moved = 0.0  # when the last one with rows was written, or a part of one
        self._told: set[str] = set()
        self._found = self._facts()  # by an earlier attempt
        self._written = False
        self._writer = FileWriter(report)
        _clear(self._root, called)

    def save(self, facts: Mapping[str, Any], weights: Sequence[Any]) -> bool:
        """Save the model with these weights in whatever format can hold it, to be written; return False where there is no room for that."""
        step = facts["step"]
        try:
            place = Path(tempfile.mkdtemp(prefix=f"{self._called}-{step}-"))  # its parent removes it where this is killed
            try:
                with _holding(self._model.weights, weights):
                    saved = [name for name in self._formats if self._try(name, place)]
                facts = {**facts, "formats": saved, "time": time.time()}
                (place / "metrics.json").write_text(json.dumps(finite(facts), indent=2) + "\n", encoding="utf-8")
            except OSError:
                shutil.rmtree(place, ignore_errors=True)
                raise
        except OSError as error:
            self._tell(f"the model of step {step} could not be saved to be exported: {error}")
            return False
        if saved:
            self._moved = time.monotonic()
            self._writer.call(self._link, partial(self._write_rows if self._tables else self._write, place, facts))
        else:
            shutil.rmtree(place)
        return True

    def _write_rows(self, place: Path, facts: Mapping[str, Any]) -> None:
        """Write a model with tables at once or not at all: the servers change the rows. An error is reported as a notice."""
        exported = self._exported
        assert exported is not None  # noqa: S101 - `save` waits for this
        try:
            self._write(place, facts, partial(self._stream, exported))
        except Exception as error:  # noqa: BLE001 - whatever the volume's file system comes up with, or a server that is gone
            for left in (place, self._root / place.name):
                shutil.rmtree(left, ignore_errors=True)
            self._tell(f"the model of step {facts['step']} could not be exported to {self._root}: {_line(error)}")
        exported.discard()
        self.ended = time.monotonic()

    def _stream(self, exported: ExportedModel, new: Path) -> None:
        file, _ = _FORMATS["saved_model"]
        for _ in exported.write(new / file):
            silent, self._moved = time.monotonic() - self._moved, time.monotonic()
            if silent > _SILENT:
                raise OSError(f"it did not answer for {silent:.0f} s, while rows were written")

    def _write(self, place: Path, facts: Mapping[str, Any], add: Callable[[Path], None] | None = None) -> None:
        """Copy a saved model to the run directory, with what `add` writes, and let the link lead to it. Raises OSError: the volume does not take it."""
        new, before, link = self._root / place.name, _target(self._link), self._root / f".{place.name}"
        shutil.rmtree(new, ignore_errors=True)  # what the volume took before it failed
        for source in (place, *sorted(place.rglob("*"))):
            copy = new / source.relative_to(place)
            if source.is_dir():
                copy.mkdir(parents=True, exist_ok=True)
            else:
                shutil.copyfile(source, copy)
        if add:
            add(new)
        link.unlink(missing_ok=True)
        link.symlink_to(new.name)
        link.replace(self._link)
        _clear(self._root, self._called, before)
        if self._called == BEST:
            (self._root / LAST).unlink(missing_ok=True)
            _clear(self._root, LAST)
        shutil.rmtree(place, ignore_errors=True)
        self._written, self._found = True, dict(facts)
        self._tell_of(facts)

    @property
    def is_idle(self) -> bool:
        """Whether everything that was saved is written."""
        return self._writer.is_idle

    def wait(self, seconds: float) -> None:
        """Wait until everything is written, for so long at most, but not for what has failed."""
        self._writer.wait(seconds)

    def complete(self) -> None:
        """Wait until a model with rows is written, as long as that moves on."""
        while not self.is_idle and time.monotonic() - self._moved < _SILENT:
            self.wait(_SILENT / 4)

    def close(self, seconds: float) -> None:
        """Wait until everything is written, and report the model that an earlier attempt has written where this one has written none."""
        self.wait(seconds)
        self._writer.close(_ONCE_MORE)
        if not self._written and isinstance(self._found.get("step"), int):
            self._tell_of(self._found)

    def _try(self, name: str, place: Path) -> bool:
        file, save = _FORMATS[name]
        try:
            left_out = (self._hold if self._tables else save)(self._model, place / file)
        except PeerLostError:
            raise
        except (OSError, tf.errors.OpError) as error:  # TensorFlow writes a SavedModel, and has errors of its own
            shutil.rmtree(place, ignore_errors=True)
            raise error if isinstance(error, OSError) else OSError(_line(error)) from error
        except Exception as error:  # noqa: BLE001 - whatever a user's own layer raises when it is to be saved
            why = f"{type(error).__name__}: {_line(error)}"
            self._tell(f"the model cannot be exported as {name}: {why}; train.export.formats says what is written")
            _remove(place / file)
            return False
        if left_out:
            self._tell(left_out)
        return True

    def _hold(self, model: keras.Model, _: Path) -> str:
        assert self._tables is not None  # noqa: S101 - else a format's own way is taken
        self._exported = ExportedModel(model, self._tables)
        return ""

    def _tell(self, message: str) -> None:
        """Report a notice, once."""
        if message not in self._told:
            self._told.add(message)
            self._report("notice", message=message)

    def _tell_of(self, facts: Mapping[str, Any]) -> None:
        self._report("exported", step=facts["step"], path=str(self._link), metric=facts.get("metric"), value=facts.get("value"))

    def value(self, metric: str, mode: str) -> float | None:
        """Return the value of the model that an earlier attempt has written, if it was chosen by this measure."""
        try:
            return float(self._found["value"]) if (self._found["metric"], self._found["mode"]) == (metric, mode) else None
        except (KeyError, TypeError, ValueError):
            return None

    def _facts(self) -> dict[str, Any]:
        try:
            facts = json.loads((self._link / "metrics.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}


def _clear(root: Path, called: str, *keep: Path | None) -> None:
    """Remove what was exported before what the link leads to and `keep`, and what a killed attempt left half written."""
    keep = (*keep, _target(root / called))
    for path in root.glob(f"{called}-*"):
        if path not in keep:
            shutil.rmtree(path, ignore_errors=True)
    for path in root.glob(f".{called}-*"):
        with suppress(OSError):
            path.unlink(missing_ok=True)


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
