"""map_reduce: the mean of a vector, a slice of it on each task, the slices of unequal sizes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.programs.cluster import Cluster, Task
from trainer.workloads.catalog import MapReduceParams

_PROBE_SIZE = 1_000_000  # numbers by which a task's speed is measured
_REPEATS = 3  # the fastest one counts: the others waited for something else

Vector = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class SliceResult:
    """A task's result for its slice: the mean, and the seconds to transfer the slice and to compute the mean."""

    size: int
    mean: float
    transfer: float
    compute: float


def map_reduce(cluster: Cluster, params: MapReduceParams, seed: int) -> dict[str, float]:
    """Return the mean and the sum of `count` numbers between 0 and 1, and how far they are from NumPy's.

    Each task computes the mean of its slice in float64; the chief combines them as sum(size x mean) / count.
    """
    numbers = np.random.default_rng(seed).random(params.count, dtype=np.float32)
    weights = _speeds(cluster) if params.slices == "speed" else [float(i + 1) for i in range(len(cluster.tasks))]
    sizes = slice_sizes(params.count, weights)
    began = time.perf_counter()
    parts = cluster.each(_mean, np.split(numbers, np.cumsum(sizes)[:-1]))
    mean = sum(part.size * part.mean for part in parts) / params.count
    seconds = time.perf_counter() - began
    expected = float(np.mean(numbers, dtype=np.float64))
    rows = [
        (task.name, f"{part.size:,}", f"{weight:,.0f}", f"{part.mean:.9f}", f"{part.transfer:.3f}", f"{part.compute:.3f}")
        for task, part, weight in zip(cluster.tasks, parts, weights, strict=True)
    ]
    weight_is = "NUMBERS/S" if params.slices == "speed" else "WEIGHT"
    cluster.show("slices", ("TASK", "SIZE", weight_is, "MEAN", "TRANSFER S", "COMPUTE S"), rows)
    return {
        "mean": mean,
        "sum": mean * params.count,
        "numpy_mean": expected,
        "relative_error": abs(mean - expected) / expected if expected else abs(mean),
        "seconds": seconds,
    }


def slice_sizes(count: int, weights: Sequence[float]) -> list[int]:
    """Return integer sizes in proportion to `weights`, all above 0, with the sum `count`; each is off by less than 1."""
    bounds = np.round(np.cumsum(weights) / np.sum(weights) * count).astype(int)
    return [int(size) for size in np.diff(bounds, prepend=0)]


def _mean(_task: Task, numbers: Vector) -> SliceResult:
    if not len(numbers):
        return SliceResult(0, 0.0, 0.0, 0.0)
    began = time.perf_counter()
    moved = tf.identity(tf.constant(numbers), name="slice")
    size = int(tf.size(moved, name="arrived"))  # computed on the task, so the slice has arrived
    arrived = time.perf_counter()
    mean = float(tf.reduce_mean(tf.cast(moved, tf.float64), name="mean"))
    return SliceResult(size, mean, arrived - began, time.perf_counter() - arrived)


def _speeds(cluster: Cluster) -> list[float]:
    """Return how many numbers a second each task averages, all tasks at once."""
    return cluster.each(_speed)


def _speed(_task: Task) -> float:
    numbers = tf.random.stateless_uniform([_PROBE_SIZE], [0, 1])
    seconds = []
    for _ in range(1 + _REPEATS):
        began = time.perf_counter()
        float(tf.reduce_mean(tf.cast(numbers, tf.float64)))
        seconds.append(time.perf_counter() - began)
    return _PROBE_SIZE / min(seconds[1:])  # the first one also waited for the numbers
