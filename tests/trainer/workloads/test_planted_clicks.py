"""planted_clicks: examples computed only from their index, with ids by Zipf's law and a known probability of a click."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.workloads import planted_clicks
from trainer.workloads.criteo import CATEGORIES
from trainer.workloads.protocol import Shard

ROWS = (1000,) * CATEGORIES
EXPONENT = 1.5


def test_an_example_depends_only_on_its_index() -> None:
    features, labels = planted_clicks.examples_at(tf.range(50, dtype=tf.int64), ROWS, EXPONENT)
    again, same = planted_clicks.examples_at(tf.constant([17, 3], tf.int64), ROWS, EXPONENT)
    for name, values in again.items():
        np.testing.assert_array_equal(values, tf.gather(features[name], [17, 3]))
    np.testing.assert_array_equal(same, tf.gather(labels, [17, 3]))
    assert (features["numbers"].dtype, features["categories"].dtype) == (tf.float32, tf.int64)
    assert len(np.unique(features["numbers"], axis=0)) == 50


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5])
def test_ids_follow_zipfs_law(exponent: float) -> None:
    draws = (tf.range(200_000, dtype=tf.float64) + 0.5) / 200_000
    counts = np.bincount(planted_clicks.zipf_ranks(draws, tf.constant(100, tf.int64), exponent).numpy(), minlength=100)
    assert (len(counts), counts.sum()) == (100, 200_000)
    # In proportion to rank^-exponent; the continuous form differs most at the head.
    assert np.log(counts[9] / counts[79]) == pytest.approx(exponent * np.log(80 / 10), rel=0.06, abs=0.02)
    assert (np.diff(counts) <= 1).all()


@pytest.mark.parametrize("rows", [1, 7, 1024, 100_000, 2**31])
def test_ids_are_below_their_tables_rows_and_no_two_ranks_share_one(rows: int) -> None:
    features, _ = planted_clicks.examples_at(tf.range(500, dtype=tf.int64), (rows,) * CATEGORIES, 0.5)
    ids = features["categories"].numpy()
    assert ids.min() >= 0
    assert ids.max() < rows
    ranks = np.arange(min(rows, 100_000), dtype=np.int64)
    assert len(np.unique(ranks * planted_clicks._SCATTER % rows)) == len(ranks)


def test_clicks_have_the_computed_probability() -> None:
    features, labels = planted_clicks.examples_at(tf.range(50_000, dtype=tf.int64), ROWS, EXPONENT)
    expected = tf.sigmoid(planted_clicks.log_odds(features)).numpy()
    for low, high in ((0.0, 0.1), (0.1, 0.3), (0.3, 0.6), (0.6, 1.0)):
        among = (expected >= low) & (expected < high)
        assert among.sum() > 1000
        assert labels.numpy()[among].mean() == pytest.approx(expected[among].mean(), abs=0.02)


def test_the_best_auc_is_that_of_the_true_probability() -> None:
    best = planted_clicks.best_auc(ROWS, EXPONENT, 20_000)
    features, labels = planted_clicks.examples_at(tf.range(20_000, dtype=tf.int64) + planted_clicks.HELD_OUT, ROWS, EXPONENT)
    odds = planted_clicks.log_odds(features).numpy()
    assert planted_clicks.auc(odds, labels.numpy()) == pytest.approx(best, abs=1e-9)
    # A guess that knows less reaches less.
    noise = np.random.default_rng(0).normal(0, 0.3, len(odds))
    assert 0.75 < planted_clicks.auc(odds + noise, labels.numpy()) < best - 0.001


def test_the_auc_is_the_part_of_pairs_in_order() -> None:
    rng = np.random.default_rng(1)
    scores, labels = rng.integers(0, 20, 300).astype(float), rng.integers(0, 2, 300).astype(float)
    ones, zeros = scores[labels == 1][:, np.newaxis], scores[labels == 0]
    assert planted_clicks.auc(scores, labels) == pytest.approx(((ones > zeros) + (ones == zeros) / 2).mean(), abs=1e-12)


def numbers_of(shard: Shard, count: int) -> np.ndarray:
    batches = planted_clicks.batches(ROWS, EXPONENT, 60, shard).take(count)
    return np.concatenate([features["numbers"] for features, _ in batches])


def test_readers_divide_the_examples_of_an_epoch_and_resume_exactly() -> None:
    examples, _ = planted_clicks.examples_at(tf.range(60, dtype=tf.int64), ROWS, EXPONENT)
    seen = np.concatenate([numbers_of(Shard(10, 5, index=index, count=2), 3) for index in range(2)])
    np.testing.assert_array_equal(np.unique(seen, axis=0), np.unique(examples["numbers"], axis=0))
    assert len(seen) == 60
    straight = numbers_of(Shard(10, 5, index=1, count=2), 9)
    np.testing.assert_array_equal(numbers_of(Shard(10, 5, index=1, count=2, start=7), 2), straight[70:])
    assert not np.array_equal(straight[:30], straight[30:60])


def test_held_out_examples_are_not_in_the_training_set() -> None:
    (features, _), (rest, _) = planted_clicks.once(ROWS, EXPONENT, 50, 60)
    assert (len(features["numbers"]), len(rest["numbers"])) == (50, 10)
    training, _ = planted_clicks.examples_at(tf.range(1000, dtype=tf.int64), ROWS, EXPONENT)
    both = np.concatenate([training["numbers"], features["numbers"], rest["numbers"]])
    assert len(np.unique(both, axis=0)) == len(both)
