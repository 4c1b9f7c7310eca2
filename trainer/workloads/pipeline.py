"""From a user's tf.data.Dataset of examples to batches: sharded between readers, cached, shuffled, batched, prefetched.

`inspect` determines the properties of the examples once, on a dataset outside any graph. The
batches themselves may be made inside a graph, for workers of parameter_server, which run no Python.

Training examples are endless, epoch by epoch; each epoch has an order of its own, drawn from (seed, reader, epoch). Reader i
of n takes every n-th example. If the number of examples is known, a reader that starts at batch `start` sees the same as an
uninterrupted one from there: it skips whole epochs at no cost, and reads the rest of one. If it is not known, the
position in the data is not either: the reader starts with an epoch in a new order.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from trainer.workloads.errors import WorkloadError
from trainer.workloads.graph_nodes import nodes_of_functions
from trainer.workloads.in_memory import ENDLESS
from trainer.workloads.protocol import Shard

# The size up to which examples are cached in memory; a larger set is read again each epoch.
CACHE_BYTES = 2**30
# Limits of the shuffle buffer for examples that do not fit in memory.
SHUFFLE_BUFFER = 10_000
SHUFFLE_BYTES = 2**28
# Threads of the pipeline's own. A task may have only one thread for TensorFlow's operations: sharing it, a pipeline and the
# loop that reads it could wait for each other forever.
THREADS = 4

# Kinds of a dataset's last operations that the trainer does itself; none of them changes the examples.
_BATCH, _ORDER, _NOTHING = "batch", "order", "nothing"
_FINAL_OPERATIONS = {
    **dict.fromkeys(("BatchDataset", "ParallelBatchDataset"), _BATCH),
    **dict.fromkeys(("ShuffleDataset", "RepeatDataset"), _ORDER),
    **dict.fromkeys(("PrefetchDataset", "OptionsDataset", "CacheDataset"), _NOTHING),
}
_CACHE = "CacheDataset"

# Datasets of a file's records, one an example.
_RECORDS = ("TFRecord", "FixedLengthRecord", "TextLine", "Csv")

_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
# Operations that may give other values each time, also those that are not stateful: their seed may come from a variable.
_RANDOM = re.compile("Random|PyFunc|Stateless(Multinomial|Parameterized|Sample|Shuffle|Truncated)")
# Stateful operations whose result changes only if an operation that is not listed here changes their state. Functions of calls and loops are searched, too.
_DETERMINISTIC = re.compile(
    r"StatefulPartitionedCall|If|While|Case|Assert|Print(V2)?|CheckNumerics(V2)?|StatelessRandomGetAlg|DummyMemoryCache|DummySeedGenerator|"
    r"VarHandleOp|VarIsInitializedOp|VariableShape|ReadVariableOp|ResourceGather(Nd)?|LookupTable(Find|Size)V2|TensorArray\w*|"
    r"(?!Random|Experimental|Generator|DataService)\w+Dataset(V\d)?"
)

_DIFFERS = "does not continue with the examples of an uninterrupted run"

# TensorFlow's messages if it cannot batch examples of different lengths; it has no error class for that.
_SHAPE_ERRORS = ("Cannot add tensor to the batch", "Cannot batch tensors with different shapes")
# Its message if it cannot unbatch a batch whose parts have different sizes.
_UNEQUAL = "must have the same batch size in each component"


@dataclass(frozen=True)
class DatasetProperties:
    """Properties of a dataset of examples. `count` and `example_bytes` are None if unknown; an endless dataset has no count."""

    count: int | None
    endless: bool
    example_bytes: int | None
    python: bool  # runs Python functions: no other process can make it
    random: bool  # may give other values each time it is read
    keeps_user_cache: bool  # it ends with the user's in-memory cache, and would vary without it: every reader caches all examples
    moves_user_cache: bool  # it ends with such a cache, and would not vary without it: each reader caches only its own part
    reordered: bool  # a shuffle in it gives another order each time it is read

    @property
    def may_cache(self) -> bool:
        """Whether to cache the examples: they are the same each time, and known to fit."""
        return (
            self.count is not None and self.example_bytes is not None and not self.random and self.count * self.example_bytes <= CACHE_BYTES
        )

    @property
    def reader_caches(self) -> bool:
        """Whether a reader caches its own examples."""
        return self.moves_user_cache or (self.may_cache and not self.keeps_user_cache)

    def after_resume(self, shard: Shard) -> str:
        """Return what differs from an uninterrupted run in a reader that begins at `shard.start`, as the end of a sentence; nothing if all is the same."""
        if not shard.start:
            return ""
        if self.count is None:
            return (
                f"{_DIFFERS}: their number is not known or they have no end, so an epoch in a new order begins; put .repeat() last, or add "
                ".apply(tf.data.experimental.assert_cardinality(n))"
            )
        in_first_epoch = (shard.start + 1) * shard.batch_size <= self.count // shard.count
        if self.reordered and not self.may_cache and not in_first_epoch:
            return (
                f"{_DIFFERS}: they are shuffled before other operations, in orders that begin with the first one again, so some may come twice in "
                "this epoch and others not at all; leave that .shuffle out, as the trainer shuffles, or put .cache() after it"
            )
        return (
            "continues with the same examples; if its functions draw random values, these begin with the first ones again"
            if self.random
            else ""
        )

    @property
    def buffer(self) -> int:
        """The size of the shuffle buffer: all examples, if they fit in memory."""
        if self.may_cache and self.count:
            return self.count
        fitting = SHUFFLE_BYTES // max(1, self.example_bytes) if self.example_bytes is not None else SHUFFLE_BUFFER
        return max(1, min(SHUFFLE_BUFFER, fitting, self.count or SHUFFLE_BUFFER))


def is_batched(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset gives batches, as for `fit`: it was made by `.batch(...)`, without `.unbatch()` after it.

    If that is not known, as for a generator, a dataset gives batches if the first dimension of each part is unknown, and some part has a second one.
    """
    batched = _batched_by_operations(dataset)
    return batched if batched is not None else _of_unknown_size(dataset) and any(shape.rank > 1 for shape in _shapes(dataset))


def may_be_batched(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset gives vectors of unknown length: they are taken as examples, but could also be batches of numbers."""
    return _batched_by_operations(dataset) is None and _of_unknown_size(dataset) and not is_batched(dataset)


def examples_of(dataset: Any) -> tf.data.Dataset:
    """Return the single examples of a dataset that may give batches.

    Datasets for `fit` often end in `.shuffle(n).repeat().batch(n).prefetch(n)`: if so, the dataset before these operations is returned, whose number
    of examples is known. Readers that shuffle independently of each other would also not see every example. If there is a cache in memory among these
    operations, it has the single examples.
    """
    examples, cache, _ = _strip_final_operations(dataset)
    return examples.cache() if cache is not None and not _filename(cache) and not _ends_cached(examples) else examples


def drops_file_cache(dataset: tf.data.Dataset) -> bool:
    """Return whether `examples_of` drops a file cache, because it holds batches or shuffled examples."""
    examples, cache, _ = _strip_final_operations(dataset)
    return cache is not None and bool(_filename(cache)) and _kind(examples) != _CACHE


def repeat_count(dataset: tf.data.Dataset) -> int:
    """Return n of a final `.repeat(n)`, else 1, also for an endless one."""
    return _strip_final_operations(dataset)[2]


def _strip_final_operations(dataset: Any) -> tuple[tf.data.Dataset, Any, int]:
    """Return (single examples, dropped cache or None, repeat count) of a dataset without its final operations."""
    examples, below, times = dataset, dataset, 1
    passed = cache = None
    wanted = {_BATCH} if is_batched(dataset) else set()
    while (done := _FINAL_OPERATIONS.get(kind := _kind(below))) is not None and (done != _BATCH or wanted):
        passed = below if kind == _CACHE else passed
        if kind == "RepeatDataset":
            times *= max(1, tf.get_static_value(below._count) or 1)  # noqa: SLF001 - as in _inputs
        (below,) = below._inputs()  # noqa: SLF001 - as in _inputs
        wanted.discard(done)
        if done != _NOTHING:
            examples, cache = below, passed
    return (dataset.unbatch(), None, 1) if wanted else (examples, cache, times)


def _filename(cache: Any) -> bytes | None:
    """Return the file of a cache, nothing if it is in memory."""
    name: bytes | None = tf.get_static_value(cache._filename)  # noqa: SLF001 - as in _inputs
    return name


def _ends_cached(examples: Any) -> bool:
    return _kind(examples) == _CACHE and not _filename(examples)


def uncached(examples: Any, properties: DatasetProperties) -> tf.data.Dataset:
    """Return `examples` without a cache at their end, if each reader may cache its own instead."""
    below: tf.data.Dataset = _inputs(examples)[0] if properties.moves_user_cache and _ends_cached(examples) else examples
    return below


def inspect(examples: tf.data.Dataset, name: str) -> DatasetProperties:
    """Return the properties of `examples`; `name` is their name in messages.

    Raises:
        WorkloadError: there are none.
    """
    count = int(examples.cardinality().numpy())
    # Epochs without examples would follow each other forever; a size that is unknown needs a look.
    if count == 0 or (count == tf.data.UNKNOWN_CARDINALITY and not any(True for _ in untuned(examples.take(1)))):
        raise WorkloadError(f"{name} has no examples; expected at least one")
    operations = {part: set(_operations(part)) for part in _ancestors(examples)}
    varying = {part for part, kinds in operations.items() if _is_random(part, kinds)}
    return DatasetProperties(
        count=count if count > 0 else None,
        endless=count == tf.data.INFINITE_CARDINALITY,
        example_bytes=_bytes(examples.element_spec),
        python=any(kinds & _PYTHON for kinds in operations.values()),
        random=not varying.isdisjoint(_ancestors(examples, into_caches=False)),
        keeps_user_cache=_ends_cached(examples) and bool(varying),
        moves_user_cache=_ends_cached(examples) and not varying,
        reordered=any(_is_reshuffled(part, operations[part]) for part in _ancestors(examples, into_caches=False)),
    )


def batches(examples: tf.data.Dataset, properties: DatasetProperties, shard: Shard) -> tf.data.Dataset:
    """Return endless batches of `shard.batch_size` examples. `shard.index` and `shard.start` may be integer tensors.

    Raises:
        WorkloadError: there are fewer examples than readers.
    """
    count, index, start = (tf.cast(value, tf.int64) for value in (shard.count, shard.index, shard.start))
    if properties.count is not None and properties.count < int(shard.count):
        raise WorkloadError(
            f"{properties.count} training examples for {shard.count} tasks that read them; expected at least one for each; train with fewer tasks"
        )
    own = uncached(examples, properties)
    own = own.shard(count, index) if int(shard.count) > 1 else own
    if properties.reader_caches:
        own = own.cache()
    seed = tf.constant(shard.seed, tf.int64) * 1_000_003 + index * 7_919

    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        return shuffled(own, properties.buffer, seed, number)

    if properties.endless:
        ordered = epoch(start)
    elif properties.count is None:
        ordered = tf.data.Dataset.range(start, ENDLESS).flat_map(epoch)
    else:
        own_count = (properties.count - index + count - 1) // count
        consumed = start * shard.batch_size
        ordered = tf.data.Dataset.range(consumed // own_count, ENDLESS).flat_map(epoch).skip(consumed % own_count)
    endless = batched(ordered, shard.batch_size, padding(examples), drop_remainder=True)
    return endless.prefetch(tf.data.AUTOTUNE).with_options(thread_pool_options())


def once(examples: tf.data.Dataset, properties: DatasetProperties, batch_size: int) -> tf.data.Dataset:
    """Return the examples once and in order, in batches; the last may be smaller.

    Raises:
        WorkloadError: they never end.
    """
    if properties.endless:
        raise WorkloadError("the examples to evaluate on never end; add .take(n) to them")
    once = batched(uncached(examples, properties), batch_size, padding(examples))
    return (once.cache() if properties.reader_caches else once).prefetch(tf.data.AUTOTUNE).with_options(thread_pool_options())


def first(examples: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Return a batch of the first examples, at most `size`; without a cache, as the rest is not read."""
    return untuned(batched(examples.take(size), size, padding(examples)))


def padding(examples: tf.data.Dataset) -> list[tf.Tensor]:
    """Return the padding values of the batches from which `examples` were taken, one for each part; none if all are zeros.

    Raises:
        WorkloadError: combined datasets are padded with different values, or a function computes the values.
    """
    return [] if all(shape is not None and shape.is_fully_defined() for shape in _shapes(examples)) else _padding(examples)


def batched(examples: tf.data.Dataset, size: int, values: Sequence[tf.Tensor] = (), *, drop_remainder: bool = False) -> tf.data.Dataset:
    """Return batches of `size` examples; examples of different lengths are padded to the longest of their batch, with `values` or zeros.

    Padding needs parts that are dense tensors of a known number of dimensions; see `batching_remedy` for others. Parts beyond `values`,
    such as class weights, have a fixed length.

    Raises:
        WorkloadError: the types of `values` are not those of the parts.
    """
    specs = tf.nest.flatten(examples.element_spec)
    known = all(isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None for spec in specs)
    padded = known and not all(spec.shape.is_fully_defined() for spec in specs)
    if not padded:
        return examples.batch(size, drop_remainder=drop_remainder)
    found, expected = [value.dtype for value in values], [spec.dtype for spec in specs]
    if found != expected[: len(found)]:
        raise WorkloadError(
            f"padded_batch has padding values for {_names(found)}, but the operations after it give examples of {_names(expected)}: "
            "it is not known which value pads which part. Give single examples, or make padded_batch the last operation"
        )
    zeros = [tf.zeros([], dtype) for dtype in expected[len(found) :]]
    return examples.padded_batch(
        size, padding_values=tf.nest.pack_sequence_as(examples.element_spec, [*values, *zeros]), drop_remainder=drop_remainder
    )


def batching_remedy(error: Exception) -> str:
    """Return the remedy, as the end of a sentence, if `error` says that examples could not be batched; else nothing."""
    if not isinstance(error, tf.errors.InvalidArgumentError):
        return ""
    if _UNEQUAL in str(error):
        return "; a Dataset is taken to give batches (docs/workloads.md, Data): if each is one example, add .batch(1)"
    if not any(text in str(error) for text in _SHAPE_ERRORS):
        return ""
    return (
        "; examples of different lengths are padded with zeros if each part of the Dataset is a dense tensor of a known number of dimensions: "
        "give it a shape such as [None] in output_signature, or by tf.ensure_shape after a py_function"
    )


def shuffled(examples: Any, buffer: int, seed: tf.Tensor, number: tf.Tensor) -> tf.data.Dataset:
    """Return `examples` in the order of epoch `number`: each is drawn from the next `buffer` of them."""
    # The raw operation, because Dataset.shuffle takes no seed that is a tensor (TensorFlow 2.21).
    variant = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(examples),
        buffer_size=tf.constant(buffer, tf.int64),
        seed=seed,
        seed2=number + 1,  # two zeros would mean a random seed
        reshuffle_each_iteration=False,
        **examples._flat_structure,  # noqa: SLF001 - tf.data has no public name for it
    )
    return tf.data.experimental.from_variant(variant, examples.element_spec)


def _ancestors(dataset: Any, *, functions: bool = False, into_caches: bool = True) -> Iterator[Any]:
    """Yield a dataset and its inputs, recursively, the last one first; with `functions` also those that its functions return.

    Without `into_caches` omit the inputs of caches, which are read once.
    """
    yield dataset
    if into_caches or _kind(dataset) != _CACHE:
        for below in (*(_returned_datasets(dataset) if functions else ()), *_inputs(dataset)):
            yield from _ancestors(below, functions=functions, into_caches=into_caches)


def _inputs(dataset: Any) -> list[Any]:
    """Return the inputs of a dataset. In the graph of a function a dataset is an operation."""
    if isinstance(dataset, tf.Operation):
        return [tensor.op for tensor in dataset.inputs if tensor.dtype == tf.variant]
    return list(dataset._inputs())  # noqa: SLF001 - tf.data has no public way to look into a dataset


def _returned_datasets(dataset: Any) -> list[tf.Operation]:
    """Return the datasets that the function of `flat_map`, `interleave` or `group_by_window` returns."""
    if not _maps_to_datasets(kind := _kind(dataset)) and "GroupByWindow" not in kind:
        return []
    if isinstance(dataset, tf.Operation):
        names = [dataset.get_attr(argument.name).name for argument in dataset.op_def.attr if argument.type == "func"]
        functions = [dataset.graph._get_function(name) for name in names]  # noqa: SLF001 - as in _inputs
        graphs = [function.graph for function in functions if function is not None]
    else:
        graphs = [function.function.graph for function in dataset._functions()]  # noqa: SLF001 - as in _inputs
    return [output.op for graph in graphs for output in graph.outputs if output.dtype == tf.variant]


def _maps_to_datasets(kind: str) -> bool:
    """Return whether a kind of dataset has a function that maps its elements to datasets."""
    return "FlatMap" in kind or ("Interleave" in kind and "Directed" not in kind)


def _batched_by_operations(dataset: tf.data.Dataset) -> bool | None:
    """Return whether a dataset's elements are batches; None if that is not known."""
    scalars = any(shape is not None and shape.rank == 0 for shape in _shapes(dataset))

    def made(part: Any) -> bool | None:
        kind, below = _kind(part), _inputs(part)
        if "Unbatch" in kind or kind.startswith((*_RECORDS, "TensorSliceDataset", "RangeDataset")):
            return False
        if "Batch" in kind:
            return True
        if scalars and (_maps_to_datasets(kind) or "DirectedInterleave" in kind):
            return False
        if _maps_to_datasets(kind):
            # A window becomes one example.
            if any(_kind(link).startswith("WindowDataset") for source in below for link in _ancestors(source)):
                return False
            below = _returned_datasets(part)
        elif "GroupByWindow" in kind and not scalars:
            below = [*_returned_datasets(part), *below]
        elif "DirectedInterleave" in kind:
            below = below[1:]  # the first selects
        return next((found for source in below if (found := made(source)) is not None), None)

    return made(dataset)


def _shapes(dataset: tf.data.Dataset) -> list[Any]:
    """Return the shape of each part of a dataset's elements; None for one that is not a dense tensor."""
    return [part.shape if isinstance(part, tf.TensorSpec) else None for part in tf.nest.flatten(dataset.element_spec)]


def _of_unknown_size(dataset: tf.data.Dataset) -> bool:
    return all(shape is not None and shape.rank and shape[0] is None for shape in _shapes(dataset))


def _padding(dataset: Any) -> list[tf.Tensor]:
    values: list[tf.Tensor] = []
    for part in _ancestors(dataset, functions=True):
        if "DirectedInterleave" in _kind(part):
            values, *others = (_padding(one) for one in _inputs(part)[1:])
            if any([*map(tf.get_static_value, values)] != [*map(tf.get_static_value, other)] for other in others):
                raise WorkloadError(
                    "the combined Datasets are padded with different values. Give single examples, or pad them with the same values"
                )
            break
        if "PaddedBatch" in _kind(part):
            values = _padding_values(part)
            break
    return values if any(tf.get_static_value(value) != tf.get_static_value(tf.zeros([], value.dtype)) for value in values) else []


def _padding_values(padded: Any) -> list[tf.Tensor]:
    if not isinstance(padded, tf.Operation):
        return list(tf.nest.flatten(padded._padding_values))  # noqa: SLF001 - as in _inputs
    parts = padded.get_attr("N")
    inputs = padded.inputs[2 + parts : 2 + 2 * parts]  # after the dataset, the size and the parts' shapes
    values = [tf.get_static_value(value) for value in inputs]
    if any(value is None for value in values):
        raise WorkloadError(
            "a padded_batch in a function computes its padding values, so they are not known. Give single examples, or constants"
        )
    return [tf.constant(value, tensor.dtype) for value, tensor in zip(values, inputs, strict=True)]


def _names(types: Sequence[tf.DType]) -> str:
    return ", ".join(one.name for one in types)


def _kind(dataset: Any) -> str:
    return str(dataset.type) if isinstance(dataset, tf.Operation) else type(dataset).__name__.strip("_")


def _is_random(dataset: Any, operations: set[str]) -> bool:
    """Return whether a dataset, with `operations` in its functions, may yield other elements on each read of the same input, apart from their order."""
    if _kind(dataset) == "RandomDataset":
        return bool(dataset._rerandomize)  # noqa: SLF001 - as in _inputs
    hidden = [tensor for function in dataset._functions() for tensor in function.function.captured_inputs]  # noqa: SLF001 - as in _inputs
    hidden += [dataset._variant_tensor] if _kind(dataset) == "VariantDataset" else []  # noqa: SLF001 - as in _inputs
    return any(map(_is_random_operation, operations)) or any(tensor.dtype == tf.variant and _may_hide_random(tensor) for tensor in hidden)


def _may_hide_random(variant: tf.Tensor) -> bool:
    """Return whether a dataset that is known only as a tensor may be random; true if TensorFlow cannot show its graph."""
    try:
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=variant, external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE.value
        )
        definition = tf.compat.v1.GraphDef.FromString(graph.numpy())
    except (tf.errors.OpError, AttributeError, ValueError):  # e.g. 2 GB, or a tensor of a graph
        return True
    # Beside the datasets it has operations that create and fill the variables and tables that their functions read.
    kinds = chain((node.op for node in definition.node if "Dataset" in node.op), (node.op for node in nodes_of_functions(definition)))
    return any(map(_is_random_operation, kinds))


def _is_reshuffled(dataset: Any, operations: set[str]) -> bool:
    """Return whether a dataset, with `operations` in its functions, yields another order on each read, even if its inputs do not."""
    if _kind(dataset) == "ShuffleDataset":
        return dataset._reshuffle_each_iteration is not False  # noqa: SLF001 - as in _inputs
    return any(operation.startswith("Shuffle") for operation in operations)


def _is_random_operation(operation: str) -> bool:
    if _DETERMINISTIC.fullmatch(operation):
        return False
    definition = op_def_registry.get(operation)
    return bool(_RANDOM.search(operation)) or (definition is not None and definition.is_stateful)


def _operations(dataset: Any) -> Iterator[str]:
    """Yield the kinds of operations in all functions of a dataset."""
    for function in dataset._functions():  # noqa: SLF001 - as in _inputs
        graph = function.function.graph.as_graph_def()
        yield from (node.op for node in chain(graph.node, nodes_of_functions(graph)))


def _bytes(spec: Any) -> int | None:
    """Return the bytes of an example, None if unknown."""
    total = 0
    for part in tf.nest.flatten(spec):
        if not isinstance(part, tf.TensorSpec) or not part.shape.is_fully_defined() or part.dtype == tf.string:
            return None
        total += part.shape.num_elements() * part.dtype.size
    return total


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a dataset without autotuning, whose iterators may wait a minute for the tuning thread at their end (decision 22)."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def thread_pool_options() -> tf.data.Options:
    """Return the options of a pipeline that has threads of its own."""
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False  # see `untuned`; AUTOTUNE then means all THREADS
    options.threading.private_threadpool_size = THREADS
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
