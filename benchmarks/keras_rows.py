"""rows.py's task in one process by Keras's `fit`, as its users write it."""

from typing import Any

import keras

from benchmarks import rows, task


class Marks(keras.callbacks.Callback):
    """Marks each step with its loss, computed from the mean over all steps so far that Keras reports."""

    def __init__(self, stopwatch: task.Stopwatch) -> None:
        super().__init__()
        self._stopwatch, self._sum = stopwatch, 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Mark it."""
        total = float(logs["loss"]) * (batch + 1)
        self._stopwatch.mark(batch + 1, total - self._sum)
        self._sum = total


def main() -> None:
    """Train and print the result."""
    options = task.parse_arguments(__doc__, rows=1_000_000)
    stopwatch = task.Stopwatch(options.steps)
    model = rows.model(options.rows, rows.IDS)
    model.compile(keras.optimizers.Adagrad(rows.LEARNING_RATE), "mse")
    model.fit(rows.batches(options.rows, rows.IDS, 0), steps_per_epoch=options.steps, verbose=0, callbacks=[Marks(stopwatch)])
    stopwatch.print()


if __name__ == "__main__":
    main()
