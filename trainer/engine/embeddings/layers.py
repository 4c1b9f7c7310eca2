"""Finds the large `keras.layers.Embedding` layers of a model: replaces their matrices by tables as it is built, or has single rows read from them.

A sharded layer has a `Table` in the place of Keras's matrix. It has no variable: no chief and no worker ever holds rows that
it does not use. Calls of the layer get rows by `Table.look_up` or `looking_up`.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from trainer.engine.byte_sizes import byte_size
from trainer.settings import Embeddings
from trainer.workloads.errors import WorkloadError

# Rows of a table for a tensor of ids of any shape.
LookUp = Callable[["Table", tf.Tensor], tf.Tensor]

_MAX_NAMES = 4  # layers in a message
INITIAL_ROWS = "_initial_rows"  # the attribute of a layer with the initial rows that the model gives it
_WEIGHTS = 6  # index of `weights` among the arguments of Keras's layer
# Options of Keras's layer that need the whole matrix -> why.
_UNSHARDED_ONLY = {
    "embeddings_regularizer": "a regularizer reads every row in every step",
    "embeddings_constraint": "a constraint changes every row in every step",
    "lora_rank": "LoRA multiplies the whole matrix",
    "quantization_mode": "quantization reads the whole matrix",
}


class RemoteRows(tf.__internal__.tracking.Trackable):
    """Stands for rows of `dimension` numbers, which are on servers, in a checkpoint of this process.

    TensorFlow writes only the first row, as of the last `take_first_row`; the others are streamed.
    """

    def __init__(self, rows: int, dimension: int, dtype: tf.DType) -> None:
        self.rows, self.dimension, self.dtype = rows, dimension, dtype
        self._first_row: tf.Tensor | None = None

    @property
    def bytes(self) -> int:
        """Return their size."""
        return self.rows * self.dimension * int(self.dtype.size)

    def take_first_row(self, first_row: tf.Tensor) -> None:
        """Take the first row, [1, dimension], for a checkpoint."""
        self._first_row = first_row

    def _serialize_to_tensors(self) -> dict[str, dict[str, tf.Tensor]]:
        row = tf.zeros([1, self.dimension], self.dtype) if self._first_row is None else self._first_row
        return {"VARIABLE_VALUE": {slice_spec(self.rows, self.dimension, 0, 1): row}}

    def _restore_from_tensors(self, _: Any) -> None:
        """Do nothing: rows are streamed."""


class Table(RemoteRows):
    """A layer's table. In a checkpoint it has the path and the name of the layer's own variable.

    `look_up` returns the rows that the layer gets outside of training steps: zeros while the model is being built.
    """

    def __init__(self, layer: keras.layers.Embedding) -> None:
        super().__init__(int(layer.input_dim), int(layer.output_dim), tf.as_dtype(layer.variable_dtype))
        self.layer, self.name = layer, layer.name
        self.look_up: LookUp = _zeros

    def __tf_tensor__(self, *_: Any, **__: Any) -> tf.Tensor:
        raise WorkloadError(
            f"the model uses the whole matrix of its layer {self.name!r}, whose {self.rows:,} rows are spread over the parameter servers; "
            f"call the layer, or keep it whole with train.embeddings.whole: [{self.name}]"
        )


def slice_spec(rows: int, dimension: int, first: int, count: int) -> str:
    """Return TensorFlow's `shape_and_slice` of `count` rows of a table from `first` on: its shape, then start and length of each axis."""
    return f"{rows} {dimension} {first},{count}:0,{dimension}"


def tables(model: keras.Model) -> list[Table]:
    """Return the tables of a model, each once, in its layers' order."""
    layers = model._flatten_layers()  # noqa: SLF001 - Keras has no public way to all of them
    by_id = {id(table): table for layer in layers if isinstance(table := getattr(layer, "_embeddings", None), Table)}
    return list(by_id.values())


def bytes_of(layer: keras.layers.Embedding) -> int:
    """Return the size of a layer's matrix."""
    return int(layer.input_dim * layer.output_dim * tf.as_dtype(layer.variable_dtype).size)


def described(layers: Sequence[keras.layers.Embedding]) -> str:
    """Return names and sizes of the largest of these layers."""
    largest = sorted(layers, key=lambda layer: -bytes_of(layer))[:_MAX_NAMES]
    named = [f"{layer.name} ({layer.input_dim:,} x {layer.output_dim}, {byte_size(bytes_of(layer))})" for layer in largest]
    return ", ".join([*named, *([f"and {len(layers) - len(largest)} more"] if len(layers) > len(largest) else [])])


def _embedding_layers(model: keras.Model) -> list[keras.layers.Embedding]:
    """Return the embedding layers of a model, each once, in the order of `tables`."""
    return [layer for layer in dict.fromkeys(model._flatten_layers()) if isinstance(layer, keras.layers.Embedding)]  # noqa: SLF001 - see `tables`


def _unsharded_layers(model: keras.Model) -> list[keras.layers.Embedding]:
    """Return the layers whose matrix is in this process, not spread over servers."""
    return [layer for layer in _embedding_layers(model) if layer.built and not isinstance(layer._embeddings, Table)]  # noqa: SLF001


def large(model: keras.Model, settings: Embeddings) -> list[keras.layers.Embedding]:
    """Return the unsharded layers that `sharding` would shard, except those with features that need the whole matrix.

    Raises:
        WorkloadError: no layer has a name that the settings give.
    """
    _check_names({layer.name for layer in _embedding_layers(model)}, settings)
    return [layer for layer in _unsharded_layers(model) if _is_large(layer, settings) and not _unsharded_only(layer)]


def gather_rows(layer: keras.layers.Embedding) -> None:
    """Let a layer read only the rows of its matrix that a call needs. Keras reads the whole matrix, and copies it once rows are written."""
    variable, rows = layer._embeddings._value, int(layer.input_dim)  # noqa: SLF001 - without Keras's cast of the whole matrix

    def gather(ids: tf.Tensor) -> tf.Tensor:
        return tf.gather(variable, tf.where(ids < 0, ids + tf.cast(rows, ids.dtype), ids))  # as Keras takes them

    object.__setattr__(layer, "call", _LookupCall(layer, gather))


def check_all_sharded(model: keras.Model, settings: Embeddings) -> None:
    """Raise WorkloadError if a large layer of a model that was built inside `sharding` is whole: the layer was built before that."""
    for layer in _unsharded_layers(model):
        if _is_large(layer, settings):
            raise WorkloadError(
                f"the layer {layer.name!r} is made where its module is imported, and so holds all of its {layer.input_dim:,} rows in this process; "
                f"make it in the model's function, or keep it whole with train.embeddings.whole: [{layer.name}]"
            )


def refuse_all_weights(model: keras.Model) -> None:
    """Let a model with tables refuse to return or take all of its weights: they would be without the rows."""

    def refuse(*_: Any) -> None:
        raise WorkloadError(
            "the model's weights cannot be had or set as a whole, as EarlyStopping(restore_best_weights=True) does: rows of large embedding layers "
            "are spread over the parameter servers. Leave that out, or keep the layers whole with train.embeddings.whole"
        )

    for name in ("get_weights", "set_weights"):
        object.__setattr__(model, name, refuse)


@contextmanager
def sharding(settings: Embeddings) -> Iterator[None]:
    """Shard the large layers of models that are built inside: replace their matrices by tables.

    Raises:
        WorkloadError: a layer is large, or named in the settings, and has a feature that needs the whole matrix; or no layer has a name
            that the settings give.
    """
    build, init = keras.layers.Embedding.build, keras.layers.Embedding.__init__
    seen: set[str] = set()

    def build_or_take(layer: keras.layers.Embedding, input_shape: Any = None) -> None:
        seen.add(layer.name)
        if layer.built:
            return
        if not _is_large(layer, settings):
            build(layer, input_shape)
            return
        _check_shardable(layer)
        layer._embeddings = table = Table(layer)  # noqa: SLF001 - in the place of the layer's own variable
        layer.built = True
        # Bypasses Keras, which would track them.
        object.__setattr__(layer, "call", _LookupCall(layer, lambda ids: (_thread_state.look_up or table.look_up)(table, ids)))
        for name in ("save_own_variables", "load_own_variables", "enable_lora", "quantize"):
            object.__setattr__(layer, name, _refuse_files(layer))

    def init_with_rows(layer: keras.layers.Embedding, *arguments: Any, weights: Any = None, **options: Any) -> None:
        if len(arguments) > _WEIGHTS:
            weights, arguments = arguments[_WEIGHTS], (*arguments[:_WEIGHTS], None, *arguments[_WEIGHTS + 1 :])
        init(layer, *arguments, **options)
        if weights is None:
            return
        rows = weights if isinstance(weights, list) and len(weights) == 1 else [weights]
        if _is_large(layer, settings):  # Keras would build the layer at once
            object.__setattr__(layer, INITIAL_ROWS, rows[0])
        else:
            layer.build()
            layer.set_weights(rows)

    with _patched(build=build_or_take, __init__=init_with_rows):
        yield
    _check_names(seen, settings)


@contextmanager
def checked(settings: Embeddings, check: Callable[[Sequence[keras.layers.Embedding]], None]) -> Iterator[None]:
    """Call `check` with the large layers so far of models that are built inside, before each of them gets its matrix."""
    build = keras.layers.Embedding.build
    large_layers: list[keras.layers.Embedding] = []

    def check_and_build(layer: keras.layers.Embedding, input_shape: Any = None) -> None:
        if not layer.built and _is_large(layer, settings):
            large_layers.append(layer)
            check(large_layers)
        build(layer, input_shape)

    with _patched(build=check_and_build):
        yield


@contextmanager
def _patched(**methods: Callable[..., None]) -> Iterator[None]:
    """Replace methods of Keras's embedding layers inside."""
    own = {name: getattr(keras.layers.Embedding, name) for name in methods}
    try:
        for name, method in methods.items():
            setattr(keras.layers.Embedding, name, method)
        yield
    finally:
        for name, method in own.items():
            setattr(keras.layers.Embedding, name, method)


def _check_names(seen: Collection[str], settings: Embeddings) -> None:
    if unknown := sorted({*settings.sharded, *settings.whole} - set(seen)):
        raise WorkloadError(
            f"train.embeddings names {', '.join(unknown)}, and the model has no such Embedding layer; it has {', '.join(sorted(seen)) or 'none'}"
        )


def _is_large(layer: keras.layers.Embedding, settings: Embeddings) -> bool:
    if layer.name in settings.whole:
        return False
    return layer.name in settings.sharded or layer.input_dim >= settings.min_rows or bytes_of(layer) >= settings.min_mebibytes * 2**20


def _unsharded_only(layer: keras.layers.Embedding) -> list[str]:
    """Return the features of a layer that need the whole matrix."""
    reasons = [f"{name}: {why}" for name, why in _UNSHARDED_ONLY.items() if getattr(layer, name, None)]
    own = [name for name in ("call", "embeddings") if getattr(type(layer), name) is not getattr(keras.layers.Embedding, name)]
    return reasons + [f"{type(layer).__name__} has `{name}` of its own" for name in own]


def _check_shardable(layer: keras.layers.Embedding) -> None:
    if reasons := _unsharded_only(layer):
        raise WorkloadError(
            f"the layer {layer.name!r} has {layer.input_dim:,} rows, which parameter_server spreads over its ps, and that cannot be: "
            f"{'; '.join(reasons)}. Leave that out, or keep the layer whole with train.embeddings.whole: [{layer.name}]"
        )


def _refuse_files(layer: keras.layers.Embedding) -> Callable[..., None]:
    def refuse(*_: Any) -> None:
        raise WorkloadError(
            f"the layer {layer.name!r} cannot be written to a file of its model, read from one, or changed as a whole: its {layer.input_dim:,} rows "
            "are spread over the parameter servers; the run's checkpoints have them"
        )

    return refuse


class _LookupCall:
    """Replaces Keras's `call` in a layer whose rows `look_up` returns."""

    def __init__(self, layer: keras.layers.Embedding, look_up: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self._layer, self._look_up = layer, look_up

    def __call__(self, inputs: Any) -> Any:
        """Return the rows of `inputs`, ids of any shape: [..., dimension]. Ragged ids have ragged rows; a missing id of a sparse tensor is 0."""
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self(inputs.flat_values))
        if isinstance(inputs, tf.SparseTensor):
            inputs = tf.sparse.to_dense(inputs)
        if inputs.dtype not in (tf.int32, tf.int64):
            inputs = tf.cast(inputs, tf.int32)
        return tf.cast(self._look_up(inputs), self._layer.compute_dtype)


def _zeros(table: Table, ids: tf.Tensor) -> tf.Tensor:
    """Return zeros for the rows of a table that does not exist yet: a model is being built."""
    zeros = tf.zeros(tf.concat([tf.shape(ids), [table.dimension]], 0), table.dtype)
    zeros.set_shape([*ids.shape, table.dimension])
    return zeros


class _ThreadState(threading.local):
    look_up: LookUp | None = None


_thread_state = _ThreadState()


@contextmanager
def looking_up(look_up: LookUp) -> Iterator[None]:
    """Let the layers that this thread calls get their rows by `look_up`."""
    before, _thread_state.look_up = _thread_state.look_up, look_up
    try:
        yield
    finally:
        _thread_state.look_up = before


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer: its table, the ids that it was given, and the rows that it got for them."""

    table: Table
    ids: tf.Tensor
    rows: tf.Tensor


def record_calls(run: Callable[[], object]) -> list[LayerCall]:
    """Return the calls of layers with tables in `run`, which gets zeros for rows; TensorFlow removes its unused operations from the graph.

    Raises:
        WorkloadError: ids depend on rows, or a table is looked up in a loop or a branch.
    """
    calls: list[LayerCall] = []
    graph = tf.compat.v1.get_default_graph()

    def record(table: Table, ids: tf.Tensor) -> tf.Tensor:
        if tf.compat.v1.get_default_graph() is not graph:
            raise WorkloadError(
                f"the model looks up its layer {table.name!r} in a loop or a branch (a recurrent layer's step, tf.cond, a tf.function), where rows "
                f"on parameter servers cannot be had; look all of them up before it, or keep it whole with train.embeddings.whole: [{table.name}]"
            )
        rows = _zeros(table, ids)
        calls.append(LayerCall(table, ids, rows))
        return rows

    with looking_up(record):
        run()
    if dependent := _dependent(calls):
        raise WorkloadError(
            f"the ids of the layer {dependent.name!r} are computed from rows of another large layer, which parameter_server looks up at once; "
            f"keep one of them whole with train.embeddings.whole: [{dependent.name}]"
        )
    return calls


# Operations that draw other numbers each time; Keras's own layers draw by their seeds.
_RANDOM_OPS = frozenset(["RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "Multinomial", "RandomShuffle"])


def _dependent(calls: Sequence[LayerCall]) -> Table | None:
    """Return a table whose ids depend on the rows of a call."""
    rows = {call.rows.op for call in calls}
    seen: set[Any] = set()
    for call in calls:
        waiting = [call.ids.op]
        while waiting:
            operation = waiting.pop()
            if operation in rows:
                return call.table
            if operation.type in _RANDOM_OPS:
                raise WorkloadError(
                    f"the ids of the layer {call.table.name!r} are drawn at random in the model, which parameter_server would do twice a step; draw them "
                    f"in the data, or keep the layer whole with train.embeddings.whole: [{call.table.name}]"
                )
            if operation not in seen:
                seen.add(operation)
                waiting += [tensor.op for tensor in operation.inputs]
    return None


def replay(calls: Sequence[LayerCall], rows: Sequence[tf.Tensor]) -> LookUp:
    """Return a look-up that gives the same calls, in the same order, these rows, each shaped like those of its call."""
    remaining = iter(zip(calls, rows, strict=True))

    def take(table: Table, _: tf.Tensor) -> tf.Tensor:
        call, call_rows = next(remaining)
        assert call.table is table  # noqa: S101 - the same code ran on the same tensors
        return call_rows

    return take
