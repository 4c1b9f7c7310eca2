"""Saves and restores the chief's model, optimizer and global step, as plain TensorFlow checkpoints.

The format is one for all strategies: `tf.train.Checkpoint(model=..., optimizer=..., step=..., seeds=[...], learning_rate=..., callbacks=...)`.
A checkpoint is complete before the `checkpoint` file names it, so a kill at any moment leaves the one before.

`learning_rate` is the rate that the optimizer was built with, as text (see `schedules.described`). The optimizer's own, in
the checkpoint as well, may be lower by now. A resume with another rate is known by the first and takes nothing of the second.
`callbacks` are the bytes of callback_state, empty without callbacks.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainer.engine import schedules
from trainer.engine.model_ops import seeds
from trainer.engine.run_state import write_atomically
from trainer.workloads.errors import WorkloadError

# Where a checkpoint has the value of a variable.
_VALUE = "{}/.ATTRIBUTES/VARIABLE_VALUE"
_BUILT_WITH = _VALUE.format("learning_rate")
_CALLBACKS = _VALUE.format("callbacks")
_ANY_SCHEDULE = keras.optimizers.schedules.ExponentialDecay(1.0, 1, 1.0)


class CheckpointError(WorkloadError):
    """Training cannot resume from the run directory. Nothing in it was changed."""


@dataclass(frozen=True)
class Restored:
    """A checkpoint that was loaded: its global step and path, and what it has of callbacks."""

    step: int
    path: str
    callbacks: bytes = b""


def list_checkpoints(directory: Path) -> list[str]:
    """Return the paths of the complete checkpoints, in the order in which they were saved; changes nothing."""
    try:
        state = tf.train.get_checkpoint_state(str(directory))
    except ValueError:  # the file that names them is there, and empty
        return []
    return list(state.all_model_checkpoint_paths) if state else []


def step_of(path: str) -> int:
    """Return the global step in a checkpoint's name."""
    return int(path.rpartition("-")[2])


class Checkpoints:
    """The checkpoints of one run, in `<run_dir>/checkpoints`."""

    def __init__(self, directory: Path, model: keras.Model, optimizer: keras.optimizers.Optimizer, keep: int) -> None:
        self._model, self._optimizer = model, optimizer
        self._step = tf.Variable(0, dtype=tf.int64)
        self._rate, self._constant = schedules.described(optimizer), schedules.constant(optimizer)
        # Keras leaves the state of random layers out of a model's checkpoint.
        self._parts = {"model": model, "optimizer": optimizer, "step": self._step, "seeds": seeds(model)}
        self._callbacks = tf.Variable(b"", dtype=tf.string)
        self._saved = tf.train.Checkpoint(**self._parts, learning_rate=tf.Variable(self._rate), callbacks=self._callbacks)
        self._recovered = _recover(directory)
        self._manager = tf.train.CheckpointManager(self._saved, str(directory), max_to_keep=keep, checkpoint_name="ckpt")

    @property
    def latest(self) -> str | None:
        """Return the path of the newest checkpoint."""
        latest: str | None = self._manager.latest_checkpoint
        return latest

    def restore(self, notice: Callable[[str], None]) -> Restored | None:
        """Load the newest checkpoint that can be read, or return None where there is none.

        `notice` is called for each that cannot be read, which is left in place. So is a learning rate other than the checkpoint's optimizer was
        built with: the new one holds.

        Raises:
            CheckpointError: a checkpoint is there and fits another model, or none of them can be read; going on would lose them.
        """
        if self._recovered:
            notice(self._recovered)
        paths = list(reversed(self._manager.checkpoints))
        for path in paths:
            try:
                reader = tf.train.load_checkpoint(path)
            except Exception as error:  # noqa: BLE001 - see below
                notice(_passed_over(path, error))
                continue
            optimizer = self._optimizer_like_that_in(reader)
            try:
                status = tf.train.Checkpoint(**{**self._parts, "optimizer": optimizer}).restore(path)
            except ValueError as error:  # shapes differ
                raise self._other_model(path, error) from error
            except Exception as error:  # noqa: BLE001 - a damaged file shows as whatever the reader stumbles over
                notice(_passed_over(path, error))
                continue
            try:
                status.assert_existing_objects_matched().expect_partial()
            except AssertionError as error:
                raise self._other_model(path, error) from error
            if optimizer is not self._optimizer:
                _copy_all_but_rate(optimizer, self._optimizer)
            step = int(self._step.numpy())
            # One of an earlier version has the optimizer's own rate alone, which nothing had lowered then.
            known = reader.has_tensor(_BUILT_WITH)
            before = reader.get_tensor(_BUILT_WITH).decode() if known else schedules.described(self._optimizer)
            if before != self._rate:
                schedules.set_rate(self._optimizer, self._constant)
                notice(f"learning rate {before} -> {self._rate} from step {step}")
            callbacks = reader.get_tensor(_CALLBACKS) if reader.has_tensor(_CALLBACKS) else b""
            return Restored(step, path, callbacks)
        if paths:
            raise CheckpointError(
                f"none of the {len(paths)} checkpoints can be read: {', '.join(paths)}; start afresh, or put a copy in their place"
            )
        return None

    def _optimizer_like_that_in(self, reader: Any) -> keras.optimizers.Optimizer:
        """Return this optimizer; where the checkpoint's has a schedule and this one a constant rate, or the reverse, another to load it into."""
        part = "inner_optimizer/" if schedules.inner(self._optimizer) is not self._optimizer else ""
        constant = reader.has_tensor(_VALUE.format(f"optimizer/{part}_learning_rate"))
        if constant == (self._constant is not None):
            return self._optimizer
        own = schedules.inner(self._optimizer)
        try:
            other = type(own).from_config({**own.get_config(), "learning_rate": 1.0 if constant else _ANY_SCHEDULE})
        except Exception as error:
            raise CheckpointError(
                f"the run was trained with {'a constant learning rate' if constant else 'a schedule'} before, and {type(own).__name__} cannot be "
                f"made again with such a one to load its state ({error}); let its get_config return all that its constructor takes"
            ) from error
        other = keras.optimizers.LossScaleOptimizer(other) if part else other
        other.build(self._model.trainable_variables)
        return other

    @staticmethod
    def _other_model(path: str, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint {path} is of another model or optimizer ({str(error).splitlines()[0]}); train under another name, or start afresh"
        )

    def save(self, step: int, callbacks: bytes = b"") -> str:
        """Write a checkpoint of global step `step`, delete those beyond `keep`, and return its path."""
        self._step.assign(step)
        self._callbacks.assign(callbacks)
        path: str = self._manager.save(checkpoint_number=step)
        return path


def _passed_over(path: str, error: Exception) -> str:
    return f"the checkpoint {path} cannot be read and is passed over: {next(iter(str(error).splitlines()), repr(error))}"


def _copy_all_but_rate(source: keras.optimizers.Optimizer, target: keras.optimizers.Optimizer) -> None:
    rates = [schedules.inner(optimizer)._learning_rate for optimizer in (source, target)]  # noqa: SLF001 - see schedules
    left, right = ([v for v in optimizer.variables if all(v is not rate for rate in rates)] for optimizer in (source, target))
    for one, other in zip(left, right, strict=True):
        other.value.assign(one.value)


def _recover(directory: Path) -> str:
    """Write the `checkpoint` file again, which names the checkpoints, where it is gone or damaged; say so, or nothing."""
    try:
        if tf.train.get_checkpoint_state(str(directory)):
            return ""
    except ValueError:  # there, and empty
        pass
    found = sorted((step_of(path.stem), path) for path in directory.glob("ckpt-[0-9]*.index"))
    if not found:
        (directory / "checkpoint").unlink(missing_ok=True)
        return ""
    # A CheckpointState in protobuf's text format; the manager passes over checkpoints that have no time.
    paths = [json.dumps(path.stem) for _, path in found]
    lines = [f"model_checkpoint_path: {paths[-1]}"]
    lines += [f"all_model_checkpoint_paths: {path}" for path in paths]
    lines += [f"all_model_checkpoint_timestamps: {path.stat().st_mtime}" for _, path in found]
    write_atomically(directory / "checkpoint", "\n".join(lines) + "\n")
    return f"{directory / 'checkpoint'} was missing or damaged; the {len(found)} checkpoints beside it are taken by their steps"
