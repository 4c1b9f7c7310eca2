"""Calls Keras's callbacks between steps, as `fit` does: on the chief, with the logs that `fit` would give them.

Every task stops at the same points, so that changes by a callback on the chief apply to all tasks from the same step on
(`Session.run_callbacks`). Only the chief's callbacks decide which points these are. An epoch is a pass over the training data if `train.epochs`
is set; else the steps between two evaluations, if `train.evaluate.every_steps` is set; else a pass again, or the whole run if the data's
length is not known.
"""

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import keras

from trainer.engine import callback_state, schedules
from trainer.engine.changes import Snapshot
from trainer.engine.epochs import EpochLength
from trainer.engine.run_state import write_atomically
from trainer.engine.session import CallProgress, Session
from trainer.engine.train_config import TrainConfig
from trainer.events import Reporter
from trainer.workloads.errors import WorkloadError
from trainer.workloads.protocol import Agent, HasCallbacks, Workload

Evaluate = Callable[[int], dict[str, float]]

_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_NEVER_CALLED = ("on_test_batch_begin", "on_test_batch_end")
# Class of a callback that is left out -> the reason.
_LEFT_OUT: dict[type, str] = {
    keras.callbacks.TensorBoard: "the trainer writes TensorBoard's files itself (train.summaries)",
    keras.callbacks.BackupAndRestore: "the trainer saves and resumes itself (train.checkpoint)",
    keras.callbacks.ProgbarLogger: "the trainer shows progress itself",
    keras.callbacks.SwapEMAWeights: "the trainer evaluates and exports an optimizer's averages itself",
}
# Class of a callback -> its attribute that is a file's path; relative paths are in the run's `results`.
_FILES: dict[type, str] = {keras.callbacks.CSVLogger: "filename", keras.callbacks.ModelCheckpoint: "filepath"}
_ON_NAN = "`train.on_nan: stop` fails the run before it would be called; with `train.on_nan: warn` it ends the run"


class CallbackList:
    """The points between steps at which callbacks are called. Without callbacks it changes nothing."""

    def __init__(self, session: Session, workload: Workload | Agent, config: TrainConfig, report: Reporter) -> None:
        self._session, self._config, self._report = session, config, report
        callbacks = workload.callbacks() if isinstance(workload, HasCallbacks) and not isinstance(workload, Agent) else []
        self._callbacks = self._selected(callbacks)
        resolve_file_paths(self._callbacks, config.run_dir / "results")
        self._tracked = callback_state.TrackedAttributes(self._callbacks)
        self._epoch_length = _epoch_length(config)
        self._epoch = 0
        self._hook_epoch = 0  # the one that began or ended last: of several that end within a step, the one whose hooks are called
        self._begun: dict[str, Any] = {}  # the epoch that has begun, and the learning rates before and after on_epoch_begin
        self._means = _Means()
        self._serialized = b""  # their state in a checkpoint
        self._logs: dict[str, float] = {}
        self._evaluate: Evaluate | None = None
        self.enabled = bool(self._callbacks)  # after `begin`: whether the chief has callbacks
        self.by_batch = any(_uses_batches(callback) for callback in self._callbacks)
        self.reason: str | None = None  # why a callback has ended the run

    def _selected(self, callbacks: Sequence[keras.callbacks.Callback]) -> list[keras.callbacks.Callback]:
        reasons = dict(_LEFT_OUT)
        if self._config.train.on_nan == "stop":
            reasons[keras.callbacks.TerminateOnNaN] = _ON_NAN
        remaining = []
        for callback in callbacks:
            why = next((reason for kind, reason in reasons.items() if isinstance(callback, kind)), None)
            if why is None:
                remaining.append(callback)
            self._notify(f"the callback {type(callback).__name__} is left out: {why}" if why else "")
            if missed := [name for name in _NEVER_CALLED if why is None and _overrides(callback, name)]:
                self._notify(f"{' and '.join(missed)} of the callback {type(callback).__name__} are never called; on_test_end is")
        return remaining

    def _notify(self, message: str) -> None:
        if message and self._session.is_chief:
            self._report("notice", message=message)

    def epoch_end(self, last: int) -> int:
        """Return the step with which the epoch ends, at most `last`: no call of the session passes it."""
        return min(last, self._epoch_length.steps(self._epoch + 1)) if self.enabled else last

    def restore(self, serialized: bytes) -> None:
        """Take the callbacks' state from a checkpoint; they get it when training begins."""
        self._serialized = serialized

    def state(self, step: int) -> bytes:
        """Return the callbacks' state for a checkpoint of `step`; empty without callbacks."""
        if not self._callbacks:
            return b""
        # True if an epoch has ended and its hooks were not called: a stop was requested, or workers of parameter servers are ahead.
        pending = self._epoch_length.epoch_at(step) > self._epoch
        begun = {**self._begun, "rate": schedules.constant_rate(self._session.optimizer)}
        return self._tracked.serialize(epoch=self._epoch, pending=pending, means=self._means.state(), ended=self._ended(), begun=begun)

    def _ended(self) -> list[Any] | None:
        """Return the reason of an early end by a callback, and the values that must be the same after a restart for that end to hold."""
        return [self.reason, self._config.steps, self._tracked.arguments_digest()] if self.reason else None

    def begin(self, step: int, evaluate: Evaluate | None) -> bool:
        """Call the hooks before the first step, on every task; return whether training is to end. `evaluate` is the chief's."""
        if step >= self._config.steps:
            return False
        self.enabled, self.by_batch = self._session.broadcast_flags([self.enabled, self.by_batch])
        if not self.enabled:
            return False
        self._evaluate = evaluate
        self._epoch = self._hook_epoch = self._epoch_length.epoch_at(step)
        ended = self._session.run_callbacks(lambda: self._begin(step))
        self._session.limit_steps(self.epoch_end(self._config.steps))
        return ended

    def _begin(self, step: int) -> bool:
        model, optimizer = self._session.model, self._session.optimizer
        model.optimizer = optimizer  # the one that trains: settings may have replaced the compiled one
        model._delete_tracking("optimizer")  # noqa: SLF001 - see model_ops.build: checkpoints have it beside the model
        model.stop_training = False
        epochs = self._epoch_length.epoch_at(self._config.steps - 1) + 1
        for callback in self._callbacks:
            callback.set_model(model)
            callback.set_params({"verbose": 0, "epochs": self._config.train.epochs or epochs, "steps": self._epoch_length.steps(1)})
        (self._config.run_dir / "results").mkdir(parents=True, exist_ok=True)  # where callbacks of the user's own write
        make_log_directories(self._callbacks)
        saved = callback_state.extra_values(self._serialized) if self._serialized else {}
        if self._serialized:
            continue_logs(self._callbacks, saved["epoch"] if saved["pending"] else self._epoch)
        self._call("on_train_begin")
        self._tracked.mark_begin()
        if saved:
            self._tracked.restore(self._serialized)
            self._means.restore(saved["means"])
        reason, self.reason = self.reason, (saved.get("ended") or [None])[0]
        if self.reason and saved["ended"] == self._ended():
            return True
        self.reason = reason  # of on_train_begin
        if saved.get("pending"):
            self._end_epoch(saved["epoch"], step)
        return bool(model.stop_training) or self._begin_epoch(self._epoch, step, saved.get("begun"))

    def after(self, progress: CallProgress) -> bool:
        """Call the hooks after a call of the session, on every task; return whether training is to end."""
        if not self.enabled:
            return False
        step = progress.step
        self._means.add(progress)
        reached = step >= self.epoch_end(self._config.steps) and (not progress.stop or step >= self._config.steps)
        if not (reached or self.by_batch):
            return False
        ended = self._session.run_callbacks(lambda: self._after(step, reached=reached), current=reached)
        if reached:
            self._epoch = self._epoch_length.epoch_at(step)
            self._session.limit_steps(self.epoch_end(self._config.steps))
        return ended

    def _after(self, step: int, *, reached: bool) -> bool:
        model, start = self._session.model, self._epoch_length.steps(self._epoch)
        if self.by_batch:
            self._call("on_train_batch_end", step - 1 - start, logs=self._means.logs())
        following = self._epoch_length.epoch_at(step)
        if reached:
            # An unfinished epoch ends with the last step. If epochs are shorter than a step, several end at once.
            last = step >= self._config.steps and self._epoch_length.steps(following) < step
            for epoch in range(self._epoch, max(following + last, self._epoch + 1)):
                self._end_epoch(epoch, step)
        elif model.stop_training:
            self._end_epoch(self._epoch, step)
        if model.stop_training or step >= self._config.steps:
            return bool(model.stop_training)
        if reached:
            return self._begin_epoch(following, step)
        return self._begin_batch(step - start)

    def _begin_epoch(self, epoch: int, step: int, saved: dict[str, Any] | None = None) -> bool:
        """Call the hooks of an epoch's begin. `saved` has the learning rates in a checkpoint of this epoch.

        on_epoch_begin then sees the same rate as at first, so a schedule that scales the current rate does not scale it twice.
        """
        self._hook_epoch = epoch
        optimizer, rates = self._session.optimizer, saved or {}
        is_same_rate = rates.get("rate") == schedules.constant_rate(optimizer)  # else the settings have another now
        has_begun = rates.get("epoch") == epoch and is_same_rate
        if has_begun:
            schedules.set_rate(optimizer, rates["before"])
        before = schedules.constant_rate(optimizer)
        self._call("on_epoch_begin", epoch)
        after = schedules.constant_rate(optimizer)
        self._begun = {"epoch": epoch, "before": before, "after": after}
        if has_begun and after == rates["after"]:
            schedules.set_rate(optimizer, rates["rate"])  # hooks of batches may have changed it since
        return self._begin_batch(step - self._epoch_length.steps(epoch))

    def _begin_batch(self, batch: int) -> bool:
        if self.by_batch:
            self._call("on_train_batch_begin", batch)
        return bool(self._session.model.stop_training)

    def _end_epoch(self, epoch: int, step: int) -> None:
        self._hook_epoch = epoch
        logs = self._means.logs()
        if self._evaluate and (self._config.train.evaluate.every_steps != 0 or step >= self._config.steps):
            logs |= {f"val_{name}": value for name, value in self._evaluate(step).items()}
        self._call("on_epoch_end", epoch, logs=logs)
        self._logs = logs
        self._means = _Means()

    def evaluation(self, evaluate: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Evaluate, between `on_test_begin` and `on_test_end`; on the chief."""
        if self._evaluate is None:  # training has not begun, or there are no callbacks
            return evaluate()
        self._call("on_test_begin")
        metrics = evaluate()
        self._call("on_test_end", logs=dict(metrics))
        return metrics

    def end(self, *, finished: bool) -> bool:
        """Call `on_train_end` if the run is finished, on the chief; return whether weights were changed. A stopped run resumes later."""
        if not self._callbacks or self._evaluate is None:
            return False
        if not finished:
            close_logs(self._callbacks)
            return False
        before = Snapshot(self._session.model.weights)
        self._call("on_train_end", logs=self._logs, after_training=True)
        return before.changed()

    def _call(self, hook: str, *indices: int, logs: dict[str, float] | None = None, after_training: bool = False) -> None:
        model = self._session.model
        logs = {} if logs is None else logs
        for callback in self._callbacks:
            before = None if after_training or self._session.trains_changed_weights or not _has(callback, hook) else Snapshot(model.weights)
            getattr(callback, hook)(*indices, logs)
            name = f"{type(callback).__name__}.{hook}"
            if before is not None and before.changed():
                raise WorkloadError(
                    f"the callback {name} has changed weights of the model, which strategy {self._config.strategy} does not train on: they are on "
                    "the parameter servers. Change them in on_train_end, or train with single, mirrored or multi_worker_mirrored"
                )
            if model.stop_training and self.reason is None:
                self.reason = f"the callback {name} has set model.stop_training in epoch {self._hook_epoch + 1}"


class _Means:
    """Means of loss and metrics over the steps of an epoch so far."""

    def __init__(self) -> None:
        self._steps = 0
        self._sums: dict[str, float] = {}

    def add(self, progress: CallProgress) -> None:
        """Count what a call has measured."""
        measured = progress.steps if progress.measured_steps is None else progress.measured_steps
        if not measured:
            return
        values = {**({} if progress.loss is None else {"loss": progress.loss}), **progress.metrics}
        self._sums = {name: self._sums.get(name, 0.0) + value * measured for name, value in values.items()}
        self._steps += measured

    def logs(self) -> dict[str, float]:
        """Return the means, `loss` first; none before a step."""
        return {name: total / self._steps for name, total in self._sums.items()} if self._steps else {}

    def state(self) -> dict[str, Any]:
        """Return the state that `restore` takes."""
        return {"steps": self._steps, "sums": self._sums}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._steps, self._sums = state["steps"], state["sums"]


def _epoch_length(config: TrainConfig) -> EpochLength:
    every = config.train.evaluate.every_steps
    if config.train.epochs is None and every:
        return EpochLength(every, 1)
    return config.epoch_length or EpochLength(max(1, config.steps), 1)


def _overrides(callback: keras.callbacks.Callback, name: str) -> bool:
    own = getattr(type(callback), name) is not getattr(keras.callbacks.Callback, name)
    return own or name in vars(callback)  # as a LambdaCallback has it


def _has(callback: keras.callbacks.Callback, hook: str) -> bool:
    """Return whether a callback overrides a hook; Keras's own `on_train_batch_*` call `on_batch_*`."""
    return _overrides(callback, hook) or (hook in _BATCH_HOOKS and _overrides(callback, hook.replace("_train", "")))


def _uses_batches(callback: keras.callbacks.Callback) -> bool:
    if (
        isinstance(callback, keras.callbacks.ModelCheckpoint)
        and type(callback).on_train_batch_end is _CHECKPOINT_HOOK
        and callback.save_freq == "epoch"
    ):
        return False  # it is called, and does nothing
    return any(_overrides(callback, name) for name in _BATCH_HOOKS)


def resolve_file_paths(callbacks: Iterable[keras.callbacks.Callback], results: Path) -> None:
    """Let relative paths of callbacks begin in `results`; absolute ones and URLs stay."""
    for callback in callbacks:
        for kind, name in _FILES.items():
            path = str(getattr(callback, name)) if isinstance(callback, kind) else ""
            if path and "://" not in path and not Path(path).is_absolute():
                setattr(callback, name, str(results / path))


def make_log_directories(callbacks: Iterable[keras.callbacks.Callback]) -> None:
    """Create the directories of logs: Keras opens the files without doing so."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger) and "://" not in callback.filename:
            Path(callback.filename).parent.mkdir(parents=True, exist_ok=True)


def continue_logs(callbacks: Iterable[keras.callbacks.Callback], epoch: int) -> None:
    """Cut the logs of a run that continues with `epoch` to the epochs before it."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger) and Path(callback.filename).is_file():
            callback.append = True
            _cut_log(Path(callback.filename), callback.sep, epoch)


def close_logs(callbacks: Iterable[keras.callbacks.Callback]) -> None:
    """Close the logs of a stopped run: `on_train_end`, which would close them, is not called."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger) and callback.csv_file:
            callback.csv_file.close()


def _cut_log(path: Path, separator: str, epoch: int) -> None:
    """Drop the rows of `epoch` and later ones: training resumes from an earlier checkpoint, and repeats them."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = file.readlines()
    head, *rows = lines or [""]
    remaining = [row for row in rows if _epoch_of(row, separator) < epoch]
    if len(remaining) < len(rows):
        write_atomically(path, "".join([head, *remaining]))


def _epoch_of(row: str, separator: str) -> int:
    first = next(csv.reader([row], delimiter=separator), [""])[:1]
    return int(first[0]) if first and first[0].isdecimal() else -1


_CHECKPOINT_HOOK = keras.callbacks.ModelCheckpoint.on_train_batch_end
