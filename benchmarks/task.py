"""The task that every program of the benchmark trains, and how each of them is timed. Imports no framework.

MLP 784 -> 100 ReLU -> 10, weights truncated normal with stddev 1/28 and 1/sqrt(100), Adam 0.01, batches of 100
for each worker, softmax cross-entropy: `mnist_mlp` of docs/workloads.md, on the same synthetic digits.
"""

import argparse
import json
import os
import time

import numpy as np

from trainer.workloads import digits

PIXELS = 784
HIDDEN = 100
CLASSES = 10
STDDEV_HIDDEN = 1 / 28
STDDEV_OUT = 1 / HIDDEN**0.5
LEARNING_RATE = 0.01
BATCH = 100
WORKERS = 2
DELAY = 0.05  # seconds that simulate a step's computation for many workers
SLOWER = 10  # factor of the delay of the slow worker in the group `backup`
CNN_BATCH = 16  # a replica's pictures in a step of the convolutional network

DEADLINE = 300  # seconds that a whole run may take

# The part of the steps after which the rate is measured: tracing, caches and connections are done by then.
WARM_UP = 0.25


def training_set() -> tuple[np.ndarray, np.ndarray]:
    """Return the digits that mnist_mlp trains on: uint8 [20000, 784] and int32 [20000]."""
    images, labels = digits.draw(20_000, seed=1)
    return images.reshape(-1, PIXELS), labels.astype(np.int32)


class Stopwatch:
    """Records the times of steps, and computes from them the result line of a program.

    The clock starts with the command: run.py sets the time in the variable BENCH_STARTED.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._started = float(os.environ.get("BENCH_STARTED", time.time()))
        self._marks: list[tuple[int, float]] = []
        self._losses: list[float] = []

    def mark(self, step: int, loss: float, when: float | None = None) -> None:
        """Record that `step` steps of all workers are done, with the loss of the last one; `when` is now if left out."""
        self._marks.append((step, time.time() if when is None else when))
        self._losses.append(loss)

    def result(self, **more: float | None) -> dict[str, float]:
        """Return steps a second after the warm-up, seconds to the first step, and the first and last losses; and those of `more` that are not None.

        Raises ValueError if too few steps were recorded to measure a rate.
        """
        steady = [mark for mark in self._marks if mark[0] >= self.steps * WARM_UP]
        if len(steady) < 2:
            message = f"{len(steady)} marks after the warm-up of {WARM_UP:.0%} of {self.steps} steps; at least 2 are needed"
            raise ValueError(message)
        (first_step, first_time), (last_step, last_time) = steady[0], steady[-1]
        return {
            "steps_per_second": round((last_step - first_step) / (last_time - first_time), 1),
            "seconds_to_first_step": round(self._marks[0][1] - self._started, 2),
            "first_loss": round(self._losses[0], 4),
            "last_loss": round(self._losses[-1], 4),
            **{name: round(value, 4) for name, value in more.items() if value is not None},
        }

    def print(self, **more: float | None) -> None:
        """Print the result as one line of JSON."""
        print(json.dumps(self.result(**more)), flush=True)


def parse_arguments(description: str | None, **more: object) -> argparse.Namespace:
    """Parse `--steps` and the options given by name and default."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=2000, help="steps of all workers together; of each worker for an all-reduce")
    for name, default in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return parser.parse_args()
