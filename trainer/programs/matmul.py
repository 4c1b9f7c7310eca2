"""matmul: a random matrix times its transpose on named devices, with separate times for computation and transfers."""

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
_NOISE = 0.25  # the part of a round trip by which two of them may differ


@dataclass(frozen=True)
class Measurement:
    """A device's result: the sum over the product, its shape, and the median seconds of each part.

    `round_trip` is the time to fetch a single number of a matrix on the device: every request to the device costs as much.
    """

    total: float
    shape: tuple[int, ...]
    device: str
    to_device: float
    compute: float
    from_device: float
    round_trip: float

    @property
    def gflops(self) -> float | None:
        """10^9 multiplications and additions a second: 2 N^3 of them, without the time of the round trip.

        None if the remaining time could be noise.
        """
        spent = self.compute - self.round_trip
        return 2 * self.shape[0] ** 3 / spent / 1e9 if spent > _NOISE * self.round_trip else None


def matmul(cluster: Cluster, params: MatmulParams, seed: int) -> dict[str, float]:
    """Return the sum over A A^T, and for each device GFLOP/s, seconds to compute, and seconds to move A there and the product back.

    `relative_error` is the largest error of the devices' sums against NumPy's sum of the squares of A's column sums, in float64.
    """
    matrix = np.random.default_rng(seed).random((params.size, params.size), dtype=np.float32)
    expected = float(np.sum(np.square(np.sum(matrix, axis=0, dtype=np.float64))))
    selected = _selected(cluster, params.devices)
    measured: list[Measurement] = []
    for step, device in enumerate(selected, 1):
        measured.append(_measure(cluster.chief.cpu, matrix, device, params.repeats))
        cluster.progress(step, len(selected), _known({"gflops": measured[-1].gflops}))
    _show(cluster, measured)
    metrics = {"sum": measured[0].total, "relative_error": max(abs(measurement.total - expected) / expected for measurement in measured)}
    for measurement in measured:
        values = {
            "gflops": measurement.gflops,
            "compute_s": measurement.compute,
            "transfer_s": measurement.to_device + measurement.from_device,
        }
        metrics |= {f"{devices.short(measurement.device)}/{what}": value for what, value in _known(values).items()}
    return metrics


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _selected(cluster: Cluster, names: list[str]) -> list[str]:
    """Return the devices of these names without duplicates: two names may fall back to the same one."""
    best_devices = [task.device for task in (cluster.chief, *cluster.tasks)]
    devices_of_names = [device for name in names for device in (best_devices if name == _ALL else [cluster.device(name)])]
    return list(dict.fromkeys(devices_of_names))


def _measure(origin: str, matrix: Any, device: str, repeats: int) -> Measurement:
    """Do each part once as a warm-up, then `repeats` times for the medians; the matrix starts on `origin`."""

    def matrix_on_origin() -> Any:
        # A new one each time: TensorFlow caches the copies that it has sent or fetched.
        with tf.device(origin):
            return tf.constant(matrix)

    with tf.device(device):
        moved, there = _timed("there", lambda matrix: _ready(tf.identity(matrix)), repeats, before=matrix_on_origin)
        product, compute = _timed("product", lambda _: _ready(tf.matmul(moved, moved, transpose_b=True)), repeats)
        _, round_trip = _timed("round_trip", lambda _: _ready(moved), repeats)
        copy, back = _timed("back", lambda matrix: matrix.numpy(), repeats, before=lambda: _ready(tf.identity(product)))
        with tf.name_scope("sum"):
            # In float64: float32 cannot add up a million numbers of 250 exactly.
            total = float(tf.reduce_sum(tf.cast(product, tf.float64)))
    return Measurement(total, copy.shape, product.device, there, compute, back, round_trip)


def _ready(matrix: Any) -> Any:
    """Return a matrix once it is computed on its device: fetch one of its numbers."""
    float(matrix[0, 0])
    return matrix


def _timed(name: str, action: Callable[[Any], Any], repeats: int, before: Callable[[], Any] = lambda: None) -> tuple[Any, float]:
    """Return the result of `action` on that of `before`, and the median of its seconds; its name in the device log is `name`."""
    seconds = []
    with tf.name_scope(name):
        result = action(before())
        for _ in range(repeats):
            argument = before()
            began = time.perf_counter()
            result = action(argument)
            seconds.append(time.perf_counter() - began)
    return result, statistics.median(seconds)


def _show(cluster: Cluster, measured: list[Measurement]) -> None:
    headers = ("DEVICE", "SHAPE", "SUM", "THERE S", "COMPUTE S", "BACK S", "ROUND TRIP S", "GFLOP/S")
    rows = [
        (
            devices.short(measurement.device),
            "x".join(map(str, measurement.shape)),
            f"{measurement.total:.9g}",
            f"{measurement.to_device:.4f}",
            f"{measurement.compute:.4f}",
            f"{measurement.from_device:.4f}",
            f"{measurement.round_trip:.4f}",
            "-" if measurement.gflops is None else f"{measurement.gflops:.1f}",
        )
        for measurement in measured
    ]
    cluster.show("matmul", headers, rows)
