"""Saves and restores the chief's model, optimizer and global step, as plain TensorFlow checkpoints.

The format is one for all strategies: `tf.train.Checkpoint(model=..., optimizer=..., step=...)`. A
checkpoint is complete before the `checkpoint` file names it, so a kill at any moment leaves the one before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import keras
import tensorflow as tf


@dataclass(frozen=True)
class Restored:
    """A checkpoint that was loaded: its global step and path."""

    step: int
    path: str


class Checkpoints:
    """The checkpoints of one run, in `<run_dir>/checkpoints`."""

    def __init__(self, directory: Path, model: keras.Model, optimizer: keras.optimizers.Optimizer, keep: int) -> None:
        self._step = tf.Variable(0, dtype=tf.int64)
        self._saved = tf.train.Checkpoint(model=model, optimizer=optimizer, step=self._step)
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
            ValueError: a checkpoint is there and fits another model; going on would lose it.
        """
        for path in reversed(self._manager.checkpoints):
            try:
                self._saved.restore(path).assert_existing_objects_matched()
            except (AssertionError, ValueError) as error:
                message = (
                    f"the checkpoint {path} is of another model or optimizer: {str(error).splitlines()[0]}; "
                    "train under another name, or start afresh"
                )
                raise ValueError(message) from error
            except tf.errors.OpError as error:
                notice(f"the checkpoint {path} cannot be read and is passed over: {str(error.message).splitlines()[0]}")
                continue
            return Restored(int(self._step.numpy()), path)
        return None

    def save(self, step: int) -> str:
        """Write a checkpoint of global step `step`, delete those beyond `keep`, and return its path."""
        self._step.assign(step)
        path: str = self._manager.save(checkpoint_number=step)
        return path
