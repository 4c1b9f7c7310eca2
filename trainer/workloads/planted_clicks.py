"""Synthetic clicks with a planted signal: 13 numbers and 26 categories whose effects on the probability of a click are known.

Example number i is computed from i alone, so the set takes no memory and is the same everywhere. Ids follow Zipf's law: the
id of rank r has a probability proportional to r^-exponent, by the inverse of the distribution's continuous form, which needs
no table. Every id of every column has an effect of its own, drawn by hashing; the log-odds of a click are the sum of 26 such
effects, one product of two latent factors, and a weighted sum of the numbers' logarithms. As the true probability
is known, `best_auc` can compute the best AUC that any model can reach.
"""

import functools
from collections.abc import Sequence
from typing import cast

import numpy as np
import tensorflow as tf

from trainer.workloads import in_memory
from trainer.workloads.criteo import CATEGORIES, NUMBERS, Features
from trainer.workloads.protocol import Shard

# Held-out examples are those from here on; training examples are those from 0 on.
HELD_OUT = 2**40

# The log-odds of a click: about a quarter of the examples have one, as in Criteo's logs.
BIAS = -2.0
ID_EFFECT = 0.4
PRODUCT_EFFECT = 0.25
NUMBER_EFFECT = 0.25
# The two columns whose latent factors are multiplied: an effect that no sum over columns has.
PRODUCT = (0, 1)

# Kinds of hashes: random words of an example, effects of ids, latent factors.
_DRAWS, _EFFECTS, _FACTORS = 1, 2, 3
_WORDS = 64  # random words reserved for an example, a power of two
_LABEL = CATEGORIES + NUMBERS

# Numbers are counts from 0 to exp(6), their logarithms nearly even.
_LOG_RANGE = 6.0

# A multiplier that scatters ranks over a table's rows: a prime above any number of rows, so no two ranks collide.
_SCATTER = 2_654_435_761


def batches(rows: Sequence[int], exponent: float, examples: int, shard: Shard) -> tf.data.Dataset:
    """Return endless (features, labels) batches of `examples` training examples, shuffled again each epoch; see in_memory.batches.

    Features are `numbers` float32 [batch, 13] and `categories` int64 [batch, 26], each below its column's `rows`.
    """
    seed, index, readers = (tf.cast(value, tf.int64) for value in (shard.seed, shard.index, shard.count))

    def draw(number: tf.Tensor) -> tuple[Features, tf.Tensor]:
        positions = (number * readers + index) * shard.batch_size + tf.range(shard.batch_size, dtype=tf.int64)
        return examples_at(in_memory.shuffled_indices(positions, examples, seed), rows, exponent)

    numbers = tf.data.Dataset.range(tf.cast(shard.start, tf.int64), in_memory.ENDLESS)
    return in_memory.prefetched(numbers.map(in_memory.do_not_convert(draw)), tf.config.list_physical_devices("GPU")).with_options(
        in_memory.inline_options()
    )


def once(rows: Sequence[int], exponent: float, batch_size: int, examples: int) -> tf.data.Dataset:
    """Return the first `examples` held-out examples in order, as `batches`; the last batch may be smaller."""
    held_out = tf.data.Dataset.range(HELD_OUT, HELD_OUT + examples).batch(batch_size)
    return held_out.map(in_memory.do_not_convert(lambda indices: examples_at(indices, rows, exponent))).with_options(
        in_memory.inline_options()
    )


def examples_at(indices: tf.Tensor, rows: Sequence[int], exponent: float) -> tuple[Features, tf.Tensor]:
    """Return the features of the examples `indices`, int64 [batch], and their labels, float32 [batch]."""
    words = tf.cast(indices[:, tf.newaxis] * _WORDS + tf.range(_LABEL + 1, dtype=tf.int64), tf.uint64)
    draws = _uniform(words, _DRAWS)
    sizes = tf.constant(list(rows), tf.int64)
    ranks = zipf_ranks(draws[:, :CATEGORIES], sizes, exponent)
    columns = tf.range(CATEGORIES, dtype=tf.int64)
    numbers = tf.floor(tf.exp(_LOG_RANGE * draws[:, CATEGORIES:_LABEL])) - 1
    features = {"numbers": tf.cast(numbers, tf.float32), "categories": tf.math.floormod(ranks * _SCATTER + columns, sizes)}
    return features, tf.cast(draws[:, _LABEL] < tf.sigmoid(log_odds(features)), tf.float32)


def zipf_ranks(draws: tf.Tensor, rows: tf.Tensor, exponent: float) -> tf.Tensor:
    """Return ranks from 0 to rows - 1, int64, for `draws` from 0 to 1, float64.

    The probability of rank r is the part of the density x^-exponent on [1, rows + 1] between r + 1 and r + 2.
    """
    end = tf.cast(rows + 1, tf.float64)
    if exponent == 1:
        points = tf.pow(end, draws)
    else:
        power = tf.constant(1 - exponent, tf.float64)
        points = tf.pow(1 - draws * (1 - tf.pow(end, power)), 1 / power)
    return tf.minimum(tf.cast(points, tf.int64) - 1, rows - 1)


def log_odds(features: Features) -> tf.Tensor:
    """Return the true log-odds of a click, float64 [batch]."""
    categories = features["categories"]
    columns = tf.range(CATEGORIES, dtype=tf.int64)
    keys = tf.cast(columns * 2**32 + categories, tf.uint64)
    one, other = (_standardized(tf.gather(keys, column, axis=1), _FACTORS) for column in PRODUCT)
    weights = tf.constant(np.resize([1.0, -1.0], NUMBERS), tf.float64)
    logs = tf.math.log1p(tf.cast(features["numbers"], tf.float64)) * (2 / _LOG_RANGE) - 1
    id_effect = ID_EFFECT * tf.reduce_sum(_standardized(keys, _EFFECTS), 1)
    return cast("tf.Tensor", BIAS + id_effect + PRODUCT_EFFECT * one * other + NUMBER_EFFECT * tf.reduce_sum(weights * logs, 1))


@functools.cache
def best_auc(rows: tuple[int, ...], exponent: float, examples: int) -> float:
    """Return the AUC of the true probability on the first `examples` held-out examples: the best that a model can reach, apart from chance."""
    odds, labels = [], []
    for features, clicked in once(rows, exponent, min(examples, 10_000), examples):
        odds.append(log_odds(features).numpy())
        labels.append(clicked.numpy())
    return auc(np.concatenate(odds), np.concatenate(labels))


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the probability that a click's score is above another example's, exactly; ties count half."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    clicks = labels > 0
    positives = int(clicks.sum())
    return float((ranks[clicks].sum() - positives * (positives + 1) / 2) / (positives * (len(labels) - positives)))


def _standardized(keys: tf.Tensor, kind: int) -> tf.Tensor:
    """Return a number for each key, uniformly distributed with mean 0 and variance 1."""
    return (2 * _uniform(keys, kind) - 1) * np.sqrt(3)


def _uniform(keys: tf.Tensor, kind: int) -> tf.Tensor:
    """Return a number from 0 to 1, float64, for each of the uint64 `keys`: the 53 high bits of SplitMix64's output for it."""
    word = keys + tf.constant(kind << 56, tf.uint64) + tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        word = tf.bitwise.bitwise_xor(word, tf.bitwise.right_shift(word, tf.constant(shift, tf.uint64))) * tf.constant(factor, tf.uint64)
    return tf.cast(tf.bitwise.right_shift(word, tf.constant(11, tf.uint64)), tf.float64) * 2.0**-53
