"""Saves and restores the chief's model, optimizer and global step, as plain TensorFlow checkpoints.

The format is one for all strategies: `tf.train.Checkpoint(model=..., optimizer=..., step=..., seeds=[...])`. A
checkpoint is complete before the `checkpoint` file names it, so a kill at any moment leaves the one before.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import keras
import tensorflow as tf

from trainer.engine.compute import seeds
from trainer.engine.record import write_atomically
from trainer.workloads.errors import WorkloadError


class CheckpointError(WorkloadError):
    """What is in the run directory cannot be gone on from. Nothing in it was changed."""


@dataclass(frozen=True)
class Restored:
    """A checkpoint that was loaded: its global step and path."""

    step: int
    path: str


def listed(directory: Path) -> list[str]:
    """Return the paths of the complete checkpoints, in the order in which they were saved; changes nothing."""
    try:
        state = tf.train.get_checkpoint_state(str(directory))
    except ValueError:  # the file that names them is there, and empty
        return []
    return list(state.all_model_checkpoint_paths) if state else []


def step_of(path: str) -> int:
    """Return the global step that a checkpoint's name tells."""
    return int(path.rpartition("-")[2])


class Checkpoints:
    """The checkpoints of one run, in `<run_dir>/checkpoints`."""

    def __init__(self, directory: Path, model: keras.Model, optimizer: keras.optimizers.Optimizer, keep: int) -> None:
        self._step = tf.Variable(0, dtype=tf.int64)
        # Keras leaves the state of random layers out of a model's checkpoint.
        self._saved = tf.train.Checkpoint(model=model, optimizer=optimizer, step=self._step, seeds=seeds(model))
        self._recovered = _recover(directory)
        self._manager = tf.train.CheckpointManager(self._saved, str(directory), max_to_keep=keep, checkpoint_name="ckpt")

    @property
    def latest(self) -> str | None:
        """Return the path of the newest checkpoint."""
        latest: str | None = self._manager.latest_checkpoint
        return latest

    def restore(self, notice: Callable[[str], None]) -> Restored | None:
        """Load the newest checkpoint that can be read, or return None where there is none.

        Each that cannot be read is told to `notice` and left in place.

        Raises:
            CheckpointError: a checkpoint is there and fits another model, or none of them can be read; going on would lose them.
        """
        if self._recovered:
            notice(self._recovered)
        paths = list(reversed(self._manager.checkpoints))
        for path in paths:
            try:
                status = self._saved.restore(path)
            except ValueError as error:  # shapes differ
                raise self._other_model(path, error) from error
            except Exception as error:  # noqa: BLE001 - a damaged file shows as whatever the reader stumbles over
                notice(f"the checkpoint {path} cannot be read and is passed over: {next(iter(str(error).splitlines()), repr(error))}")
                continue
            try:
                status.assert_existing_objects_matched()
            except AssertionError as error:
                raise self._other_model(path, error) from error
            return Restored(int(self._step.numpy()), path)
        if paths:
            raise CheckpointError(
                f"none of the {len(paths)} checkpoints can be read: {', '.join(paths)}; start afresh, or put a copy in their place"
            )
        return None

    @staticmethod
    def _other_model(path: str, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint {path} is of another model or optimizer ({str(error).splitlines()[0]}); train under another name, or start afresh"
        )

    def save(self, step: int) -> str:
        """Write a checkpoint of global step `step`, delete those beyond `keep`, and return its path."""
        self._step.assign(step)
        path: str = self._manager.save(checkpoint_number=step)
        return path


def _recover(directory: Path) -> str:
    """Write the `checkpoint` file anew, which names the checkpoints, where it is gone or damaged; say so, or nothing."""
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
