"""Batches of examples that fit in memory: endless and shuffled for training, once and in order for evaluation.

Training batches are a pure function of (seed, index, count, batch number), so a reader that starts at batch
`start` sees exactly the batches that an uninterrupted one would have seen from there.

One epoch is one permutation of the examples. The readers share its positions batch by batch: batch b of
reader i of n takes positions (b*n + i)*size ... +size of the endless sequence of epochs. A batch may span two epochs,
so nothing is dropped: n readers together see each example exactly once an epoch.

Why blocks: a call into a dataset's function costs about as much as a batch itself, so one call draws many
batches and `unbatch` separates them. Measured with 28x28 uint8 images and batch 100 on one core, a batch costs
75 us in blocks, 130 us one by one, and 290 us through `from_tensor_slices(...).shuffle(...).batch(...)`, of which
40 us are the call of the iterator. Images stay uint8, a quarter of float32, until the model scales them.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from trainer.workloads.protocol import Shard

# About the size that fits into a core's cache together with the model's own tensors.
BLOCK_BYTES = 2_500_000
MAX_BLOCK = 64

# Rounds of the cipher that permutes the examples. With TensorFlow's default of 4, one pair of neighbours in nine among 100 examples stays together;
# with 8, no more than by chance. Small sets cost more: 10 us an example with 100 examples, less from 65,536 on.
ROUNDS = 8

# Batches that are prefetched while a GPU computes: one being used, one being made.
PREFETCHED_BATCHES = 2

# A tensor that is sent to another process must stay below 2 GB. A worker stores both the parts and their concatenation.
PART_BYTES = 1 << 30

# Any number far above the steps of a run; blocks are added to it without overflow.
ENDLESS = 2**62


# For functions of only TensorFlow operations: AutoGraph would take up to a second for each data set to search them for Python control flow.
do_not_convert = tf.autograph.experimental.do_not_convert


def batches(inputs: Any, targets: Any, shard: Shard) -> tf.data.Dataset:
    """Return endless (inputs, targets) batches of `shard.batch_size` examples, shuffled again each epoch.

    `inputs` and `targets` are arrays [examples, ...], or nests (dict, tuple) of such; their dtypes stay. `shard.index` and
    `shard.start` may be integer tensors, as they are where a parameter-server coordinator traces the dataset for its workers.

    Raises ValueError if the arrays are empty or differ in length.
    """
    examples = count(inputs, targets)
    block = _batches_per_block(inputs, targets, shard.batch_size)
    everything = tf.nest.map_structure(_tensor, (inputs, targets))
    seed, index, readers = (tf.cast(value, tf.int64) for value in (shard.seed, shard.index, shard.count))

    @do_not_convert
    def draw(first: tf.Tensor) -> tuple[Any, Any]:
        batch = first + tf.range(block, dtype=tf.int64)
        positions = ((batch * readers + index) * shard.batch_size)[:, tf.newaxis] + tf.range(shard.batch_size, dtype=tf.int64)
        picked = shuffled_indices(positions, examples, seed)
        block_batches: tuple[Any, Any] = tf.nest.map_structure(lambda array: tf.gather(array, picked), everything)
        return block_batches

    start = tf.cast(shard.start, tf.int64)
    endless = tf.data.Dataset.range(start, ENDLESS, block).map(draw).unbatch()
    return prefetched(endless, tf.config.list_physical_devices("GPU")).with_options(inline_options())


def prefetched(batches: tf.data.Dataset, gpus: Sequence[object]) -> tf.data.Dataset:
    """Prefetch batches while `gpus` compute; without GPUs batches are made between the steps, which need the cores."""
    return batches.prefetch(PREFETCHED_BATCHES) if gpus else batches


def once(inputs: Any, targets: Any, batch_size: int) -> tf.data.Dataset:
    """Return the examples once and in order, in (inputs, targets) batches; the last may be smaller.

    Raises ValueError if the arrays are empty or differ in length.
    """
    count(inputs, targets)
    return tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(batch_size).with_options(inline_options())


def shuffled_indices(positions: tf.Tensor, examples: int, seed: tf.Tensor) -> tf.Tensor:
    """Map positions in the endless sequence of epochs to examples; each epoch is a permutation of its own."""
    flat = tf.reshape(positions, [-1])
    epoch, position = flat // examples, flat % examples
    keys = tf.stack([tf.fill(tf.shape(flat), seed), epoch, tf.zeros_like(flat)], axis=1)
    # The raw operation, because tf.random.experimental.index_shuffle cannot take one seed an index (TensorFlow 2.21).
    picked = tf.raw_ops.RandomIndexShuffle(
        index=position,
        seed=tf.cast(keys, tf.int32),
        max_index=tf.fill(tf.shape(flat), tf.constant(examples - 1, tf.int64)),
        rounds=ROUNDS,
    )
    return tf.ensure_shape(tf.reshape(picked, tf.shape(positions)), positions.shape)


def _tensor(array: Any) -> tf.Tensor:
    """Return an array as a tensor. In a graph, it is an input of that graph, in parts that TensorFlow can send to a worker."""
    rows = max(1, PART_BYTES * len(array) // max(1, _bytes(array))) if tf.inside_function() else len(array)
    with tf.init_scope(), tf.device("CPU:0"):
        parts = [tf.constant(array[first : first + rows]) for first in range(0, len(array), rows)]
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def _batches_per_block(inputs: Any, targets: Any, batch_size: int) -> int:
    arrays = tf.nest.flatten((inputs, targets))
    batch_bytes: int = batch_size * sum(map(_bytes, arrays)) // len(arrays[0])
    return max(1, min(MAX_BLOCK, BLOCK_BYTES // max(1, batch_bytes)))


def _bytes(array: Any) -> int:
    """Return the size of an array in bytes; for Python strings, their maximum in UTF-8."""
    return int(array.nbytes) if array.dtype != object else 4 * sum(map(len, array.flat))


def count(inputs: Any, targets: Any) -> int:
    """Return the number of examples. Raises ValueError if the arrays are empty or differ in length."""
    lengths: list[list[int]] = [[len(array) for array in tf.nest.flatten(part)] for part in (inputs, targets)]
    if len({length for part in lengths for length in part}) != 1 or not any(lengths[0]):
        shown = " and ".join(
            f"{', '.join(map(str, part)) or 'no'} {what}" for part, what in zip(lengths, ("inputs", "targets"), strict=True)
        )
        message = f"{shown}: expected as many of the one as of the other, at least one."
        raise ValueError(message)
    return lengths[0][0]


def inline_options() -> tf.data.Options:
    """Return the options of a pipeline whose batches are made between the steps."""
    options = tf.data.Options()
    options.deterministic = True
    # The pipeline is one thread by design: the cores belong to the training step.
    options.autotune.enabled = False
    options.threading.max_intra_op_parallelism = 1
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
