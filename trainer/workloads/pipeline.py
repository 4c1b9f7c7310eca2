"""From a user's tf.data.Dataset of examples to batches: sharded between readers, cached, shuffled, batched, prefetched.

The facts about the examples that each step needs are found once, on a dataset made outside any graph (`inspect`). The
batches themselves may be made inside a graph, for workers of parameter_server, which run no Python.

Training examples go on forever, epoch by epoch; each epoch has an order of its own, drawn from (seed, reader, epoch). Reader i
of n takes every n-th example. Where the number of examples is known, a reader that starts at batch `start` sees what it
would have seen from there: whole epochs are skipped at no cost, the rest of one by reading it. Where it is not known, what
came before `start` is not known either: the reader starts with an epoch in a new order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.workloads.errors import WorkloadError
from trainer.workloads.protocol import Shard

# Examples that are cached in memory once they were read; a larger set is read again each epoch.
CACHE_BYTES = 2**30
# Among how many examples the next one is drawn, where they are not all in memory.
SHUFFLE_BUFFER = 10_000
SHUFFLE_BYTES = 2**28
# Threads of a pipeline's own: with those of TensorFlow's operations, of which a task may have one, a pipeline and the
# loop that reads it can wait for each other forever.
THREADS = 4

ENDLESS = 2**62

# Kinds of a dataset's last operation that the trainer does itself; none that would change its examples.
_BATCH, _ORDER, _NOTHING = "batch", "order", "nothing"
_LAST = {
    **dict.fromkeys(("BatchDataset", "ParallelBatchDataset"), _BATCH),
    **dict.fromkeys(("ShuffleDataset", "RepeatDataset"), _ORDER),
    **dict.fromkeys(("PrefetchDataset", "OptionsDataset", "CacheDataset"), _NOTHING),
}

_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
_RANDOM = (
    "Random",
    "StatelessRandom",
    "StatefulUniform",
    "StatefulStandardNormal",
    "StatefulTruncatedNormal",
    "StatefulRandom",
    "Multinomial",
)


# How TensorFlow refuses to batch examples of different lengths; it has no error of its own for that.
_SHAPE_ERRORS = ("Cannot add tensor to the batch", "Cannot batch tensors with different shapes")


@dataclass(frozen=True)
class Facts:
    """The facts about a dataset of examples. `count` and `example_bytes` are None where they are unknown, `endless` has no count."""

    count: int | None
    endless: bool
    example_bytes: int | None
    python: bool  # runs Python functions: no other process can make it
    random: bool  # draws again each time it is read

    @property
    def fits_in_memory(self) -> bool:
        """Whether the examples are worth keeping: as many as are known to fit, the same each time."""
        return (
            self.count is not None and self.example_bytes is not None and not self.random and self.count * self.example_bytes <= CACHE_BYTES
        )

    @property
    def buffer(self) -> int:
        """Return among how many examples the next one is drawn: all of them, where they are in memory."""
        if self.fits_in_memory and self.count:
            return self.count
        fitting = SHUFFLE_BYTES // max(1, self.example_bytes) if self.example_bytes is not None else SHUFFLE_BUFFER
        return max(1, min(SHUFFLE_BUFFER, fitting, self.count or SHUFFLE_BUFFER))


def gives_batches(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset gives batches, as `fit` takes them: it was made by `.batch(...)` and not taken apart since."""
    for part in _chain(dataset):
        kind = _kind(part)
        if "Unbatch" in kind or "FlatMap" in kind or "Interleave" in kind:
            return False
        if "Batch" in kind:
            return True
    return False


def examples_of(dataset: Any) -> tf.data.Dataset:
    """Return the single examples of a dataset that may give batches.

    Datasets for `fit` are often `.shuffle(n).repeat().batch(n).prefetch(n)` of examples whose number is known: those are taken where that is
    all that was done to them last, since readers that shuffle apart from each other would not see every example.
    """
    examples = below = dataset
    wanted = {_BATCH} if gives_batches(dataset) else set()
    while (done := _LAST.get(_kind(below))) is not None and (done != _BATCH or wanted):
        (below,) = below._inputs()  # noqa: SLF001 - as in _chain
        wanted.discard(done)
        examples = examples if done == _NOTHING else below
    return dataset.unbatch() if wanted else examples


def inspect(examples: tf.data.Dataset, name: str) -> Facts:
    """Return what is known of `examples`; `name` is what messages call them.

    Raises:
        WorkloadError: there are none.
    """
    count = int(examples.cardinality().numpy())
    if count == 0:
        raise WorkloadError(f"{name} has no examples; expected at least one")
    operations = set(_operations(examples))
    return Facts(
        count=count if count > 0 else None,
        endless=count == tf.data.INFINITE_CARDINALITY,
        example_bytes=_bytes(examples.element_spec),
        python=bool(operations & _PYTHON),
        random=any(operation.startswith(_RANDOM) for operation in operations),
    )


def batches(examples: tf.data.Dataset, facts: Facts, shard: Shard) -> tf.data.Dataset:
    """Return endless batches of `shard.batch_size` examples. `shard.index` and `shard.start` may be integer tensors.

    Raises:
        WorkloadError: there are fewer examples than readers, so that one of them would have none.
    """
    count, index, start = (tf.cast(value, tf.int64) for value in (shard.count, shard.index, shard.start))
    if facts.count is not None and facts.count < int(shard.count):
        raise WorkloadError(
            f"{facts.count} training examples for {shard.count} readers; expected at least one for each; train with fewer tasks"
        )
    own = examples.shard(count, index) if int(shard.count) > 1 else examples
    if facts.fits_in_memory:
        own = own.cache()
    seed = tf.constant(shard.seed, tf.int64) * 1_000_003 + index * 7_919

    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        return shuffled(own, facts.buffer, seed, number)

    if facts.endless:
        ordered = epoch(start)
    elif facts.count is None:
        ordered = tf.data.Dataset.range(start, ENDLESS).flat_map(epoch)
    else:
        own_count = (facts.count - index + count - 1) // count
        drawn = start * shard.batch_size
        ordered = tf.data.Dataset.range(drawn // own_count, ENDLESS).flat_map(epoch).skip(drawn % own_count)
    return batched(ordered, shard.batch_size, padding(examples), drop_remainder=True).prefetch(tf.data.AUTOTUNE).with_options(options())


def once(examples: tf.data.Dataset, facts: Facts, batch_size: int) -> tf.data.Dataset:
    """Return the examples once and in order, in batches; the last may be smaller.

    Raises:
        WorkloadError: they never end.
    """
    if facts.endless:
        raise WorkloadError("the examples to evaluate on never end; add .take(n) to them")
    once = batched(examples, batch_size, padding(examples))
    return (once.cache() if facts.fits_in_memory else once).prefetch(tf.data.AUTOTUNE).with_options(options())


def first(examples: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Return a batch of the first examples, at most `size`; not cached, as the rest is not read."""
    return untuned(batched(examples.take(size), size, padding(examples)))


def padding(examples: tf.data.Dataset) -> list[tf.Tensor]:
    """Return the values that batches were padded with which `examples` were taken from, one a part; none where those are zeros."""
    padded = next((part for part in _chain(examples) if _kind(part) == "PaddedBatchDataset"), None)
    values = [] if padded is None else tf.nest.flatten(padded._padding_values)  # noqa: SLF001 - as in _chain
    return values if any(tf.get_static_value(value) != tf.get_static_value(tf.zeros([], value.dtype)) for value in values) else []


def batched(examples: tf.data.Dataset, size: int, values: Sequence[tf.Tensor] = (), *, drop_remainder: bool = False) -> tf.data.Dataset:
    """Return batches of so many examples; those of different lengths are padded to the longest of their batch, with `values` or zeros.

    For that each part must be a tensor of a known number of dimensions; see `remedy` for those that are not. Parts beyond `values`,
    such as weights of classes, have one length.

    Raises:
        WorkloadError: there are `values` of other parts.
    """
    specs = tf.nest.flatten(examples.element_spec)
    known = all(isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None for spec in specs)
    padded = known and not all(spec.shape.is_fully_defined() for spec in specs)
    if not padded:
        return examples.batch(size, drop_remainder=drop_remainder)
    found, expected = [value.dtype for value in values], [spec.dtype for spec in specs]
    if found != expected[: len(found)]:
        raise WorkloadError(
            f"padded_batch has padding values for {_names(found)}, and what was done after it makes examples of {_names(expected)}: "
            "which part is padded with which of them is not known. Give single examples, or let padded_batch be the last that is done"
        )
    zeros = [tf.zeros([], dtype) for dtype in expected[len(found) :]]
    return examples.padded_batch(
        size, padding_values=tf.nest.pack_sequence_as(examples.element_spec, [*values, *zeros]), drop_remainder=drop_remainder
    )


def remedy(error: Exception) -> str:
    """Return what to do about an error of training, as the end of a sentence, where examples could not be put into one batch; else nothing."""
    if not isinstance(error, tf.errors.InvalidArgumentError) or not any(text in str(error) for text in _SHAPE_ERRORS):
        return ""
    return (
        "; examples of different lengths are padded with zeros where each part of the Dataset is a dense tensor of a known number of dimensions: "
        "give it a shape such as [None] in output_signature, or by tf.ensure_shape after a py_function"
    )


def shuffled(examples: Any, buffer: int, seed: tf.Tensor, number: tf.Tensor) -> tf.data.Dataset:
    """Return `examples` in the order of epoch `number`: each is drawn from the next `buffer` of them."""
    # The raw operation, because Dataset.shuffle takes no seed that is a tensor (TensorFlow 2.21).
    variant = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(examples),
        buffer_size=tf.constant(buffer, tf.int64),
        seed=seed,
        seed2=number + 1,  # two zeros would be a seed drawn by chance
        reshuffle_each_iteration=False,
        **examples._flat_structure,  # noqa: SLF001 - tf.data has no public name for what its operations need
    )
    return tf.data.experimental.from_variant(variant, examples.element_spec)


def _chain(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and those that it is made from, the last made first."""
    yield dataset
    for below in dataset._inputs():  # noqa: SLF001 - tf.data has no public way to look into a dataset
        yield from _chain(below)


def _names(types: Sequence[tf.DType]) -> str:
    return ", ".join(one.name for one in types)


def _kind(dataset: Any) -> str:
    return type(dataset).__name__.strip("_")


def _operations(dataset: Any) -> Iterator[str]:
    """Yield the kinds of operations in all functions of a dataset."""
    for part in _chain(dataset):
        for function in part._functions():  # noqa: SLF001 - as above
            graph = function.function.graph.as_graph_def()
            yield from (node.op for node in graph.node)
            yield from (node.op for defined in graph.library.function for node in defined.node_def)


def _bytes(spec: Any) -> int | None:
    total = 0
    for part in tf.nest.flatten(spec):
        if not isinstance(part, tf.TensorSpec) or not part.shape.is_fully_defined() or part.dtype == tf.string:
            return None
        total += part.shape.num_elements() * part.dtype.size
    return total


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a dataset whose iterators end at once: a tuned one's may wait a minute for the thread that tunes it (decision 22)."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def options() -> tf.data.Options:
    """Return the options of a pipeline that has threads of its own."""
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False  # see `untuned`; AUTOTUNE means all THREADS then
    options.threading.private_threadpool_size = THREADS
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
