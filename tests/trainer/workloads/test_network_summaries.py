"""Histogram buckets: those of TensorBoard, and sensible ones for values that it does not define."""

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.plugins.histogram.summary_v2 import histogram_pb

from trainer.workloads.network_summaries import buckets


@pytest.mark.parametrize(
    "values",
    [np.random.default_rng(0).normal(size=(70, 30)).astype(np.float32), np.array([0.0, 1.0]), np.full(12, 3.5)],
    ids=["normal", "two", "same"],
)
def test_buckets_are_those_of_tensorboard(values: np.ndarray) -> None:
    expected = tf.make_ndarray(histogram_pb("any", values, buckets=30).value[0].tensor)
    actual = buckets(values)
    np.testing.assert_allclose(actual[:, :2], expected[:, :2], rtol=1e-6, atol=1e-12)
    # A value on an edge may fall on either side of it.
    assert abs(actual[:, 2] - expected[:, 2]).sum() <= 2
    assert actual[:, 2].sum() == values.size


def test_infinite_values_are_left_out() -> None:
    actual = buckets(np.array([np.nan, 1.0, np.inf, 2.0, -np.inf]))
    assert actual[:, 2].sum() == 2
    assert (actual[0, 0], actual[-1, 1]) == (1.0, 2.0)


def test_no_finite_value_gives_an_empty_histogram() -> None:
    np.testing.assert_array_equal(buckets(np.array([np.nan])), np.zeros((30, 3)))
