"""A run's files for TensorBoard: scalars, the workload's own summaries, profiles.

TensorFlow writes events to memory, its file system `ram://`; a FileWriter copies them from there to the volume.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import keras
import tensorflow as tf

from trainer.engine.file_writer import FileWriter
from trainer.engine.session import CallProgress

_MAX_BYTES = 16 * 2**20  # bytes in memory after which the file there is removed
_count = itertools.count()


class _Writer:
    """Writes events to a file in memory, and copies that to a file on the volume."""

    def __init__(self, directory: Path, files: FileWriter) -> None:
        self._directory, self._files = directory, files
        self._name = ""
        self._open()

    def _open(self) -> None:
        directory, self._copied = f"ram://logs-{next(_count)}", 0
        self.events = tf.summary.create_file_writer(directory)
        (name,) = tf.io.gfile.listdir(directory)
        self._memory = f"{directory}/{name}"
        self._name = self._name or name  # one file on the volume for all of those in memory

    def flush(self) -> None:
        """Pass new events to the FileWriter."""
        self.events.flush()
        with tf.io.gfile.GFile(self._memory, "rb") as file:
            file.seek(self._copied)
            new = file.read()
        self._copied += len(new)
        if new:
            self._files.append(self._directory / self._name, new)
        if self._copied > _MAX_BYTES:
            tf.io.gfile.remove(self._memory)
            self._open()


class Logs:
    """Writers for `logs/train` and `logs/eval`, created when first used."""

    def __init__(self, run_dir: Path, files: FileWriter) -> None:
        self._root, self._files = run_dir / "logs", files
        self._writers: dict[str, _Writer] = {}

    @property
    def train_dir(self) -> str:
        """Return the directory of the training summaries."""
        return str(self._root / "train")

    @contextmanager
    def _writing(self, name: str, step: int) -> Iterator[None]:
        if name not in self._writers:
            self._writers[name] = _Writer(self._root / name, self._files)
        with self._writers[name].events.as_default(step=step):
            yield
        self._writers[name].flush()

    def progress(self, progress: CallProgress, optimizer: keras.optimizers.Optimizer, examples_per_second: float) -> None:
        """Write loss, metrics, learning rate and speed of training."""
        with self._writing("train", progress.step):
            if progress.loss is not None:
                tf.summary.scalar("loss", progress.loss)
            for name, value in progress.metrics.items():
                tf.summary.scalar(name, value)
            tf.summary.scalar("learning_rate", float(keras.ops.convert_to_numpy(optimizer.learning_rate)))
            tf.summary.scalar("examples_per_second", examples_per_second)

    def evaluation(self, metrics: dict[str, float], step: int) -> None:
        """Write the metrics of an evaluation on the held-out set."""
        with self._writing("eval", step):
            for name, value in metrics.items():
                tf.summary.scalar(name, value)

    @contextmanager
    def training_writer(self, step: int) -> Iterator[None]:
        """Make the training writer the default, at `step`."""
        with self._writing("train", step):
            yield

    @contextmanager
    def profile(self) -> Iterator[None]:
        """Record a profile of what runs inside."""
        tf.profiler.experimental.start(self.train_dir)
        try:
            yield
        finally:
            tf.profiler.experimental.stop()

    def close(self) -> None:
        """Pass all buffered events to the FileWriter."""
        for writer in self._writers.values():
            writer.flush()
