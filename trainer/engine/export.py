"""Exports models for use elsewhere: the best so far, `export/best` in the run directory, and `export/last` if nothing was evaluated.

Each is a link to a directory beside it and is replaced atomically, so a reader finds a complete model. The previous directory stays until
the next export: a reader that has just opened it can finish. Links are relative, so that they hold wherever the run directory is mounted.

A model is first saved to temporary files (`export_formats`), and a thread copies them to the run directory, whose volume may hang or be full.
For tables that are spread over servers, that thread reads the rows from the servers (`exported_tables`).
"""

import errno
import json
import math
import operator
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras

from trainer.engine import export_formats
from trainer.engine.byte_sizes import byte_size
from trainer.engine.embeddings import exported_tables
from trainer.engine.embeddings.exported_tables import ExportedModel
from trainer.engine.embeddings.sharded_tables import Tables
from trainer.engine.export_formats import SavedFiles, one_line
from trainer.engine.file_writer import FileWriter
from trainer.engine.session import PeerLostError
from trainer.events import Reporter, finite
from trainer.settings import Export, direction
from trainer.workloads.errors import WorkloadError

_BETTER: dict[str, Callable[[float, float], bool]] = {"max": operator.gt, "min": operator.lt}


BEST, LAST = "best", "last"
_EXPORTS = "export"  # the directory of both
_LAST_RETRY = 10.0  # seconds at the end for the retry of failed writes
_POLL_INTERVAL = 0.2  # seconds between checks whether a wait is to end

# A saved model, to be written to the run directory: one that `can_wait` is retried until it is written, another is written at once or not at all.
_Saved = SavedFiles | ExportedModel


@dataclass(frozen=True)
class _Candidate:
    step: int
    value: float
    metrics: dict[str, float]
    weights: list[Any]


class BestModel:
    """Writes the best of the models that it is offered: their weights, without the optimizer's state.

    It saves with `model`, and restores that model's own weights afterwards. Saves take at most the fraction `share` of the time: one takes
    about a second, and early in training each model is the best so far. Weights that come too soon, or while earlier ones are not written
    yet, wait in memory for the next evaluation or the end. Rows of sharded tables cannot wait: a model that comes too soon is skipped,
    unless it is the last one.
    """

    def __init__(
        self,
        export: Export,
        run_dir: Path,
        names: Sequence[str] | None,
        model: keras.Model,
        report: Reporter,
        *,
        share: float,
        tables: Tables | None = None,
    ) -> None:
        """Continue from an earlier attempt's best model. `names` are those of an evaluation's loss and metrics, None if they are not known yet.

        `tables` are those of the model that are spread over servers.

        Raises:
            WorkloadError: the settings' metric is none of `names`, or it is not known whether more or less of it is better. `offer` raises the
                former if `names` is None.
        """
        self._export = export
        metric_and_mode = _metric_and_mode(export, [export.metric or "loss"] if names is None else names)
        self._metric_and_mode = None if names is None else metric_and_mode  # None until the first evaluation shows the names
        self._share = share
        self._files = _ModelWriter(export, run_dir, BEST, model, report, tables)
        self._can_wait = tables is None
        self._waiting: _Candidate | None = None
        self.has_best = False  # whether this attempt, once it has evaluated, knows of a best model, written or not

    def offer(
        self, step: int, metrics: Mapping[str, float], weights: Sequence[keras.Variable], stop_requested: Callable[[], bool] = lambda: False
    ) -> None:
        """Keep `weights`, all of the model's, if its metrics are the best so far; save the model that waits if a save is due.

        An export that blocks training is waited for, until a stop is requested.
        """
        metric, mode = self._metric_and_mode = self._metric_and_mode or _metric_and_mode(self._export, tuple(metrics))
        value = metrics[metric]
        if not self._can_wait:
            self._waiting = None  # its rows on the servers have changed since then
        best = self._waiting.value if self._waiting else self._files.value(metric, mode)
        if math.isfinite(value) and (best is None or _BETTER[mode](value, best)):
            self._waiting = _Candidate(step, value, dict(metrics), [keras.ops.convert_to_numpy(w) for w in weights])
        if self._files.is_idle and time.monotonic() >= self._files.began + (self._files.ended - self._files.began) / self._share:
            self._save()
        self.has_best = self._files.value(metric, mode) is not None or (self._can_wait and self._waiting is not None)
        self._files.complete(stop_requested)

    def _save(self) -> None:
        """Save the model that waits, unless the previous one is still to be written. An error is only reported as a notice: training continues."""
        candidate = self._waiting
        if candidate is None or self._metric_and_mode is None or not self._files.is_idle:
            return
        metric, mode = self._metric_and_mode
        facts = {"step": candidate.step, "metric": metric, "mode": mode, "value": candidate.value, "metrics": candidate.metrics}
        if self._files.save(facts, candidate.weights):
            self._waiting = None

    def wait(self, seconds: float) -> None:
        """Wait until the saved model is written, for so long at most; a write that fails is not waited for, one that hangs is."""
        end = time.monotonic() + seconds
        self._files.wait(lambda: end)

    def finish(self, deadline: Callable[[], float], step: int | None = None, *, finished: bool) -> None:
        """Write the model that waits, and report the best one if an earlier attempt has written it.

        `deadline` returns it, by time.monotonic. If `step` is that of the last offer, the rows of sharded tables have not changed
        since.

        Raises:
            PeerLostError: the run has `finished`, and a server is gone that has rows of the model: the next attempt exports it.
        """
        is_wanted = self._waiting is not None and (self._can_wait or self._waiting.step == step)
        self._files.wait(deadline, retried=_LAST_RETRY if is_wanted else 0.0)
        with _reporting_peer_loss(finished, self._files.notify):
            if is_wanted:
                self._save()
            self._files.close(deadline)
        if is_wanted and self._waiting:
            self._files.notify(
                f"the best model, of step {self._waiting.step}, is not exported: the one before it could not be written in time"
            )


def write_last(
    export: Export,
    run_dir: Path,
    step: int,
    metrics: Mapping[str, float],
    model: keras.Model,
    report: Reporter,
    deadline: Callable[[], float],
    *,
    finished: bool,
    tables: Tables | None = None,
) -> None:
    """Write `export/last` with the weights that `model` has at `step`, unless there is a best model; see BestModel.finish.

    An error is reported as a notice.
    """
    if _target(run_dir / _EXPORTS / BEST) is not None:
        return
    files = _ModelWriter(export, run_dir, LAST, model, report, tables)
    weights = [keras.ops.convert_to_numpy(w) for w in model.weights]
    with _reporting_peer_loss(finished, files.notify):
        files.save({"step": step, "metric": None, "mode": None, "value": None, "metrics": dict(metrics)}, weights)
        files.close(deadline)


@contextmanager
def _reporting_peer_loss(finished: bool, notify: Callable[[str], None]) -> Iterator[None]:
    """Report a PeerLostError instead of raising it, unless the run has finished: no later attempt would export the model."""
    try:
        yield
    except PeerLostError as error:
        if finished:
            raise
        notify(f"the model is not exported: {error}")


def clear_last(run_dir: Path) -> None:
    """Remove incomplete models of `export/last` that a killed attempt left."""
    _clear(run_dir / _EXPORTS, LAST)


class _ModelWriter:
    """Writes the exported models of one run to `<run_dir>/export/<name>`."""

    def __init__(
        self, export: Export, run_dir: Path, name: str, model: keras.Model, report: Reporter, tables: Tables | None = None
    ) -> None:
        """Remove incomplete models that a killed attempt left."""
        self._root, self._name = run_dir / _EXPORTS, name
        self._link = self._root / name
        self._model, self._report = model, report
        self._save: Callable[..., _Saved | None] = partial(exported_tables.save, tables) if tables else export_formats.save
        # A model that is not one of Keras's kinds may list the formats that it supports; those that the settings name are tried anyway.
        supported: Sequence[str] = getattr(model, "export_formats", export.formats)
        self._formats = [name for name in export.formats if "formats" in export.model_fields_set or name in supported]
        self._saved: _Saved | None = None
        self._lost_peer: PeerLostError | None = None  # it had a part of the last model
        self.began = self.ended = 0.0  # of the last save, and of the write of a model that cannot wait
        self._reported: set[str] = set()
        # Of the last model that was written, also by an earlier attempt, or saved.
        self._written_facts = self._saved_facts = self._read_facts()
        self._has_written = False
        self._writer = FileWriter(report)
        _clear(self._root, name)

    def save(self, facts: Mapping[str, Any], weights: Sequence[Any]) -> bool:
        """Save the model with these weights in each format that supports it, to be written; return False if there is no space for that."""
        step, self.began = facts["step"], time.monotonic()
        try:
            with _temporary_values(self._model.weights, weights):
                saved = self._save(self._model, self._formats, self.notify)
        except OSError as error:
            self.notify(f"the model of step {step} could not be saved to be exported: {error}")
            return False
        finally:
            self.ended = time.monotonic()
        self._saved_facts = dict(facts)
        if saved:
            self._saved, self._lost_peer = saved, None
            new = self._root / f"{self._name}-{step}-{secrets.token_hex(4)}"
            write = self._write if saved.can_wait else self._write_at_once
            self._writer.call(self._link, partial(write, saved, new, {**facts, "formats": list(saved.formats), "time": time.time()}))
        return True

    def _write_at_once(self, saved: _Saved, new: Path, facts: Mapping[str, Any]) -> None:
        """Write a saved model at once or not at all. An error is reported as a notice."""
        try:
            self._write(saved, new, facts)
        except Exception as error:  # noqa: BLE001 - any error of the volume's file system, or a lost server
            self._lost_peer, self._saved_facts = error if isinstance(error, PeerLostError) else None, self._written_facts
            self.notify(f"the model of step {facts['step']} could not be exported to {self._root}: {one_line(error)}")
            with suppress(Exception):
                saved.discard()
        self.ended = time.monotonic()

    def _write(self, saved: _Saved, new: Path, facts: Mapping[str, Any]) -> None:
        """Write a saved model to the directory `new`, and point the link to it. Raises OSError: the volume does not take it."""
        before, link = _target(self._link), self._root / f".{new.name}"
        if self._link.is_dir() and not self._link.is_symlink():
            raise OSError(errno.EEXIST, "it is a directory and no link; move it away")
        metrics_json = json.dumps(finite(facts), indent=2) + "\n"
        self._check_free_space(saved.bytes + len(metrics_json))
        try:
            new.mkdir(exist_ok=True)
            saved.write(new)
            (new / "metrics.json").write_text(metrics_json, encoding="utf-8")
            link.unlink(missing_ok=True)
            link.symlink_to(new.name)
            link.replace(self._link)
        except Exception:
            shutil.rmtree(new, ignore_errors=True)  # checkpoints need the space more
            raise
        with suppress(OSError):
            _clear(self._root, self._name, before)
            if self._name == BEST:
                (self._root / LAST).unlink(missing_ok=True)
                _clear(self._root, LAST)
        with suppress(Exception):
            saved.discard()
        self._has_written, self._written_facts = True, dict(facts)
        with suppress(OSError):
            self._report_exported(facts)

    def _check_free_space(self, size: int) -> None:
        """Create the directory; raise OSError if the volume lacks the space for `size` bytes, rather than let half a model take it from checkpoints."""
        self._root.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(self._root)
        if disk.total and size > disk.free:
            message = f"{os.strerror(errno.ENOSPC)}: it takes {byte_size(size)}, and {byte_size(disk.free)} are free"
            raise OSError(errno.ENOSPC, message)

    @property
    def is_idle(self) -> bool:
        """Whether everything that was saved is written."""
        return self._writer.is_idle

    def wait(self, deadline: Callable[[], float], *, retried: float = 0.0) -> None:
        """Wait until everything is written, or `deadline`; for failed writes only `retried` seconds."""
        retry_until = time.monotonic() + retried
        while not self.is_idle and (now := time.monotonic()) < deadline():
            failing = self._writer.is_failing
            if failing and now >= retry_until:
                return
            self._writer.wait(_POLL_INTERVAL, failed=failing)

    def complete(self, stop_requested: Callable[[], bool]) -> None:
        """Wait for an export that blocks training, until a stop is requested."""
        while not self.is_idle and self._saved is not None and self._saved.blocks_training(stop_requested):
            self._writer.wait(_POLL_INTERVAL)

    def close(self, deadline: Callable[[], float]) -> None:
        """Wait until everything is written, and report the model that an earlier attempt has written if this one has written none.

        Raises:
            PeerLostError: a server is gone that had rows of the last model.
        """
        self.wait(deadline, retried=_LAST_RETRY)
        self._writer.close(0.0)
        if not self._has_written and isinstance(self._written_facts.get("step"), int):
            self._report_exported(self._written_facts)
        if self._lost_peer is not None:
            raise self._lost_peer

    def notify(self, message: str) -> None:
        """Report a notice, once."""
        if message not in self._reported:
            self._reported.add(message)
            self._report("notice", message=message)

    def _report_exported(self, facts: Mapping[str, Any]) -> None:
        self._report("exported", step=facts["step"], path=str(self._link), metric=facts.get("metric"), value=facts.get("value"))

    def value(self, metric: str, mode: str) -> float | None:
        """Return the value of the model that was saved or written last, if it was chosen by this metric."""
        saved = self._saved_facts
        try:
            return float(saved["value"]) if (saved["metric"], saved["mode"]) == (metric, mode) else None
        except (KeyError, TypeError, ValueError):
            return None

    def _read_facts(self) -> dict[str, Any]:
        try:
            facts = json.loads((self._link / "metrics.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}


def _clear(root: Path, name: str, *keep: Path | None) -> None:
    """Remove all exports but the link's target and `keep`, and incomplete ones that a killed attempt left."""
    keep = (*keep, _target(root / name))
    for path in root.glob(f"{name}-*"):
        if path not in keep:
            shutil.rmtree(path, ignore_errors=True)
    for path in root.glob(f".{name}-*"):
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _metric_and_mode(export: Export, names: Sequence[str]) -> tuple[str, str]:
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


def _target(link: Path) -> Path | None:
    try:
        return link.parent / link.readlink()
    except OSError:
        return None


@contextmanager
def _temporary_values(variables: Sequence[keras.Variable], values: Sequence[Any]) -> Iterator[None]:
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
