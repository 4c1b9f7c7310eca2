"""The chief's files for TensorBoard: scalars, the workload's own summaries, profiles."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainer.engine.session import Progress


class Logs:
    """Writers for `logs/train` and `logs/eval`, made when first used."""

    def __init__(self, run_dir: Path) -> None:
        self._root = run_dir / "logs"
        self._writers: dict[str, Any] = {}

    @property
    def train_dir(self) -> str:
        """Return the directory of the training summaries."""
        return str(self._root / "train")

    def _writer(self, name: str) -> Any:
        if name not in self._writers:
            self._writers[name] = tf.summary.create_file_writer(str(self._root / name))
        return self._writers[name]

    def progress(self, progress: Progress, optimizer: keras.optimizers.Optimizer, examples_per_second: float) -> None:
        """Write loss, metrics, learning rate and speed of training."""
        with self._writer("train").as_default(step=progress.step):
            if progress.loss is not None:
                tf.summary.scalar("loss", progress.loss)
            for name, value in progress.metrics.items():
                tf.summary.scalar(name, value)
            tf.summary.scalar("learning_rate", float(keras.ops.convert_to_numpy(optimizer.learning_rate)))
            tf.summary.scalar("examples_per_second", examples_per_second)

    def evaluation(self, metrics: dict[str, float], step: int) -> None:
        """Write the metrics of an evaluation on the held-out set."""
        with self._writer("eval").as_default(step=step):
            for name, value in metrics.items():
                tf.summary.scalar(name, value)
        self._writer("eval").flush()

    @contextmanager
    def training_writer(self, step: int) -> Iterator[None]:
        """Make the training writer the default, at `step`."""
        with self._writer("train").as_default(step=step):
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
        """Write out what is buffered."""
        for writer in self._writers.values():
            writer.close()
