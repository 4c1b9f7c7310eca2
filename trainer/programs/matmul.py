"""matmul: a random matrix times its transpose on devices by name, the computing and the moving of data timed apart."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.programs import devices
from trainer.programs.cluster import Cluster
from trainer.workloads.catalog import MatmulParams

_ALL = "all"
_CHANCE = 0.25  # part of a round trip by which two of them differ


@dataclass(frozen=True)
class Measured:
    """A device's result: the sum over the product, its shape, and the median seconds of each part.

    `round_trip` is how long a single number of a matrix that is there takes: asking the device for anything costs that, whatever it computes.
    """

    total: float
    shape: tuple[int, ...]
    device: str
    there: float
    compute: float
    back: float
    round_trip: float

    @property
    def gflops(self) -> float | None:
        """Thousand million operations a second, a multiplication and an addition each one: 2 N^3 of them, the round trip taken off.

        None where what is left of the time could as well be chance.
        """
        spent = self.compute - self.round_trip
        return 2 * self.shape[0] ** 3 / spent / 1e9 if spent > _CHANCE * self.round_trip else None


def matmul(cluster: Cluster, params: MatmulParams, seed: int) -> dict[str, float]:
    """Return the sum over A A^T, and for each device GFLOP/s, seconds to compute, and seconds to move A there and the product back.

    `relative_error` is the largest one of all devices' sums, which are that of the squares of A's column sums (NumPy's, in float64).
    """
    matrix = np.random.default_rng(seed).random((params.size, params.size), dtype=np.float32)
    expected = float(np.sum(np.square(np.sum(matrix, axis=0, dtype=np.float64))))
    wanted = _found(cluster, params.devices)
    found = []
    for step, device in enumerate(wanted, 1):
        found.append(_measure(cluster.chief.cpu, matrix, device, params.repeats))
        cluster.progress(step, len(wanted), _known({"gflops": found[-1].gflops}))
    _show(cluster, found)
    metrics = {"sum": found[0].total, "relative_error": max(abs(one.total - expected) / expected for one in found)}
    for one in found:
        values = {"gflops": one.gflops, "compute_s": one.compute, "transfer_s": one.there + one.back}
        metrics |= {f"{devices.short(one.device)}/{what}": value for what, value in _known(values).items()}
    return metrics


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _found(cluster: Cluster, names: list[str]) -> list[str]:
    """Return the devices by these names, each once: two may fall back to the same one."""
    everyone = [task.device for task in (cluster.chief, *cluster.tasks)]
    found = [device for name in names for device in (everyone if name == _ALL else [cluster.device(name)])]
    return list(dict.fromkeys(found))


def _measure(origin: str, matrix: Any, device: str, repeats: int) -> Measured:
    """Do everything once, for what a first time costs, then `repeats` times for the medians; the matrix begins on `origin`."""

    def here() -> Any:
        # Another one each time: TensorFlow remembers the copies that it has sent, and those that it has fetched.
        with tf.device(origin):
            return tf.constant(matrix)

    with tf.device(device):
        moved, there = _timed("there", lambda matrix: _ready(tf.identity(matrix)), repeats, before=here)
        product, compute = _timed("product", lambda _: _ready(tf.matmul(moved, moved, transpose_b=True)), repeats)
        _, round_trip = _timed("round_trip", lambda _: _ready(moved), repeats)
        copy, back = _timed("back", lambda matrix: matrix.numpy(), repeats, before=lambda: _ready(tf.identity(product)))
        with tf.name_scope("sum"):
            # In float64: a million numbers of 250 each are more than float32 adds up exactly.
            total = float(tf.reduce_sum(tf.cast(product, tf.float64)))
    return Measured(total, copy.shape, product.device, there, compute, back, round_trip)


def _ready(matrix: Any) -> Any:
    """Return a matrix once it is computed where it is: one of its numbers is asked for."""
    float(matrix[0, 0])
    return matrix


def _timed(name: str, action: Callable[[Any], Any], repeats: int, before: Callable[[], Any] = lambda: None) -> tuple[Any, float]:
    """Return what `action` makes of what `before` gives, and the median of its seconds; the device log knows it by `name`."""
    seconds = []
    with tf.name_scope(name):
        result = action(before())
        for _ in range(repeats):
            given = before()
            began = time.perf_counter()
            result = action(given)
            seconds.append(time.perf_counter() - began)
    return result, statistics.median(seconds)


def _show(cluster: Cluster, found: list[Measured]) -> None:
    headers = ("DEVICE", "SHAPE", "SUM", "THERE S", "COMPUTE S", "BACK S", "ROUND TRIP S", "GFLOP/S")
    rows = [
        (
            devices.short(one.device),
            "x".join(map(str, one.shape)),
            f"{one.total:.9g}",
            f"{one.there:.4f}",
            f"{one.compute:.4f}",
            f"{one.back:.4f}",
            f"{one.round_trip:.4f}",
            "-" if one.gflops is None else f"{one.gflops:.1f}",
        )
        for one in found
    ]
    cluster.show("matmul", headers, rows)
