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

# Datasets of a file's records, one an example.
_RECORDS = ("TFRecord", "FixedLengthRecord", "TextLine", "Csv")

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
# How it refuses to take apart a batch whose parts have different sizes.
_UNEQUAL = "must have the same batch size in each component"


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
    """Return whether a dataset gives batches, as `fit` takes them: it was made by `.batch(...)` and not taken apart since.

    Where that cannot be seen, as of a generator, batches are of unknown size in each part, and some part has more dimensions than that.
    """
    made = _made_of_batches(dataset)
    return made if made is not None else _of_unknown_size(dataset) and any(shape.rank > 1 for shape in _shapes(dataset))


def may_give_batches(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset gives rows of numbers of unknown length, taken as examples, which could as well be batches of numbers."""
    return _made_of_batches(dataset) is None and _of_unknown_size(dataset) and not gives_batches(dataset)


def examples_of(dataset: Any) -> tf.data.Dataset:
    """Return the single examples of a dataset that may give batches.

    Datasets for `fit` are often `.shuffle(n).repeat().batch(n).prefetch(n)` of examples whose number is known: those are taken where that is
    all that was done to them last, since readers that shuffle apart from each other would not see every example.
    """
    examples = below = dataset
    wanted = {_BATCH} if gives_batches(dataset) else set()
    while (done := _LAST.get(_kind(below))) is not None and (done != _BATCH or wanted):
        (below,) = below._inputs()  # noqa: SLF001 - as in _below
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
    """Return the values that batches were padded with which `examples` were taken from, one a part; none where those are zeros.

    Raises:
        WorkloadError: datasets that were put together are padded with different values, or a function computes them.
    """
    return [] if all(shape is not None and shape.is_fully_defined() for shape in _shapes(examples)) else _padding(examples)


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
    if not isinstance(error, tf.errors.InvalidArgumentError):
        return ""
    if _UNEQUAL in str(error):
        return "; a Dataset is taken to give batches (docs/workloads.md, Data): if each is one example, add .batch(1)"
    if not any(text in str(error) for text in _SHAPE_ERRORS):
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


def _chain(dataset: Any, *, functions: bool = False) -> Iterator[Any]:
    """Yield a dataset and those that it is made from, the last made first; with `functions` those that its functions return, too."""
    yield dataset
    for below in (*(_returned(dataset) if functions else ()), *_below(dataset)):
        yield from _chain(below, functions=functions)


def _below(dataset: Any) -> list[Any]:
    """Return the datasets that one is made from. In the graph of a function a dataset is an operation."""
    if isinstance(dataset, tf.Operation):
        return [one.op for one in dataset.inputs if one.dtype == tf.variant]
    return list(dataset._inputs())  # noqa: SLF001 - tf.data has no public way to look into a dataset


def _returned(dataset: Any) -> list[tf.Operation]:
    """Return the datasets that the function of `flat_map`, `interleave` or `group_by_window` returns."""
    if not _spreads(kind := _kind(dataset)) and "GroupByWindow" not in kind:
        return []
    if isinstance(dataset, tf.Operation):
        names = [dataset.get_attr(one.name).name for one in dataset.op_def.attr if one.type == "func"]
        functions = [dataset.graph._get_function(name) for name in names]  # noqa: SLF001 - as in _below
        graphs = [function.graph for function in functions if function is not None]
    else:
        graphs = [function.function.graph for function in dataset._functions()]  # noqa: SLF001 - as in _below
    return [one.op for graph in graphs for one in graph.outputs if one.dtype == tf.variant]


def _spreads(kind: str) -> bool:
    """Return whether a kind of dataset has a function that makes datasets of its elements."""
    return "FlatMap" in kind or ("Interleave" in kind and "Directed" not in kind)


def _made_of_batches(dataset: tf.data.Dataset) -> bool | None:
    """Return whether a dataset is made of batches, or of examples; None where that cannot be seen."""
    scalars = any(shape is not None and shape.rank == 0 for shape in _shapes(dataset))

    def made(part: Any) -> bool | None:
        kind, below = _kind(part), _below(part)
        if "Unbatch" in kind or kind.startswith((*_RECORDS, "TensorSliceDataset", "RangeDataset")):
            return False
        if "Batch" in kind:
            return True
        if scalars and (_spreads(kind) or "DirectedInterleave" in kind):
            return False
        if _spreads(kind):
            # A window is put together to one example.
            if any(_kind(one).startswith("WindowDataset") for source in below for one in _chain(source)):
                return False
            below = _returned(part)
        elif "GroupByWindow" in kind and not scalars:
            below = [*_returned(part), *below]
        elif "DirectedInterleave" in kind:
            below = below[1:]  # the first selects
        return next((found for one in below if (found := made(one)) is not None), None)

    return made(dataset)


def _shapes(dataset: tf.data.Dataset) -> list[Any]:
    """Return the shape of each part of a dataset's elements; None for what is no dense tensor."""
    return [part.shape if isinstance(part, tf.TensorSpec) else None for part in tf.nest.flatten(dataset.element_spec)]


def _of_unknown_size(dataset: tf.data.Dataset) -> bool:
    return all(shape is not None and shape.rank and shape[0] is None for shape in _shapes(dataset))


def _padding(dataset: Any) -> list[tf.Tensor]:
    values: list[tf.Tensor] = []
    for part in _chain(dataset, functions=True):
        if "DirectedInterleave" in _kind(part):
            values, *others = (_padding(one) for one in _below(part)[1:])
            if any([*map(tf.get_static_value, values)] != [*map(tf.get_static_value, other)] for other in others):
                raise WorkloadError(
                    "the Datasets that are put together are padded with different values. Give single examples, or pad them alike"
                )
            break
        if "PaddedBatch" in _kind(part):
            values = _padding_values(part)
            break
    return values if any(tf.get_static_value(value) != tf.get_static_value(tf.zeros([], value.dtype)) for value in values) else []


def _padding_values(padded: Any) -> list[tf.Tensor]:
    if not isinstance(padded, tf.Operation):
        return list(tf.nest.flatten(padded._padding_values))  # noqa: SLF001 - as in _below
    parts = padded.get_attr("N")
    inputs = padded.inputs[2 + parts : 2 + 2 * parts]  # after the dataset, the size and the parts' shapes
    values = [tf.get_static_value(value) for value in inputs]
    if any(value is None for value in values):
        raise WorkloadError(
            "the padding values of a padded_batch in a function are computed: they are not known. Give single examples, or numbers"
        )
    return [tf.constant(value, one.dtype) for value, one in zip(values, inputs, strict=True)]


def _names(types: Sequence[tf.DType]) -> str:
    return ", ".join(one.name for one in types)


def _kind(dataset: Any) -> str:
    return str(dataset.type) if isinstance(dataset, tf.Operation) else type(dataset).__name__.strip("_")


def _operations(dataset: Any) -> Iterator[str]:
    """Yield the kinds of operations in all functions of a dataset."""
    for part in _chain(dataset):
        for function in part._functions():  # noqa: SLF001 - as in _below
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
