"""The rows of tables on parameter servers: row `id` of a table is on server `id % servers`.

Tables of one dimension are concatenated in one variable on each server, so that a step has one look-up and one update per server for any
number of tables. The key of a row among all tables is the sum of its id in its table and the table's `base`, a multiple of the servers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

from trainer.engine.embeddings import initial_rows
from trainer.engine.embeddings.layers import INITIAL_ROWS, LayerCall, Table
from trainer.engine.embeddings.row_updates import RowHandle
from trainer.engine.parameter_server.state import device

_BLOCK = 16 * 2**20  # bytes of rows that are drawn, read or written at once


@dataclass(frozen=True)
class RowRange:
    """Some rows of a table, or of one of its slots: `count` of them from `first` on."""

    table: Table
    slot: str
    first: int
    count: int


class TableGroup:
    """Tables of one dimension and type, with the slots of their optimizer; `trained` or left as they are."""

    def __init__(self, tables: Sequence[Table], servers: int, slots: Mapping[str, float], *, trained: bool) -> None:
        self.tables, self.servers, self.trained = tables, servers, trained
        self.dimension, self.dtype = tables[0].dimension, tables[0].dtype
        self._initial_slots = dict(slots) if trained else {}
        self._bases: dict[Table, int] = {}
        keys = 0
        for table in tables:
            self._bases[table] = keys
            keys += -(-table.rows // servers) * servers
        self._rows_per_server = keys // servers
        self.key_dtype = tf.int32 if keys <= tf.int32.max else tf.int64
        self._variables: dict[str, list[tf.Variable]] = {}
        self._first_reader: Any = None
        self._readers: dict[str, Any] = {}
        self._writers: dict[str, Any] = {}
        self._initializers = [(table, initial_rows.draw_of(table), initial_rows.given_rows(table)) for table in tables]

    @property
    def slots(self) -> Sequence[str]:
        """Return the names of the slots of each row: "" for the row itself, then the optimizer's."""
        return ["", *self._initial_slots]

    @property
    def bytes_of_server(self) -> int:
        """Return the bytes that each server holds."""
        return self._rows_per_server * self.dimension * int(self.dtype.size) * len(self.slots)

    def create(self) -> None:
        """Allocate all rows on their servers; slots get their initial values."""
        shape = [self._rows_per_server, self.dimension]

        def allocated(server: int) -> tf.Variable:
            with tf.device(device(server)):
                return UninitializedVariable(shape=shape, dtype=self.dtype, trainable=False)

        # The shape is an argument: with a constant shape TensorFlow would fold the rows to a constant of the function, a second copy.
        def fill(server: int, shape: tf.Tensor) -> None:
            for slot, variables in self._variables.items():
                variables[server].assign(tf.fill(shape, tf.cast(self._initial_slots.get(slot, 0.0), self.dtype)))

        self._variables = {slot: [allocated(server) for server in range(self.servers)] for slot in self.slots}
        self._on_all_servers(fill, tf.constant(shape))

    def initialize(self, seed: Sequence[int]) -> None:
        """Set all rows to their initial values, on their servers."""
        fills = []
        for index, (table, draw, initial) in enumerate(self._initializers):
            if initial is not None:
                for row_range in self.row_ranges(table, ""):
                    self.write(row_range, tf.constant(initial[row_range.first : row_range.first + row_range.count], self.dtype))
            else:
                table_seed = int(np.random.SeedSequence([*seed, index]).generate_state(1)[0]) % 2**30
                fills.append(partial(self._fill, table, draw, table_seed))

        def fill_all(server: int) -> None:
            for fill in fills:
                fill(self._variables[""][server], server)

        self._on_all_servers(fill_all)

    def free_initial_rows(self) -> None:
        """Drop the initial rows that the model's layers were given, which may be many."""
        self._initializers = []
        for table in self.tables:
            vars(table.layer).pop(INITIAL_ROWS, None)

    def _on_all_servers(self, work: Callable[..., None], *arguments: tf.Tensor) -> None:
        """Call `work` with the number of each server and `arguments`, on all servers at the same time.

        In a TensorFlow function a variable takes over a tensor's memory, so there is no second copy. One function serves all servers: to start
        a function takes longer than to fill a few rows.
        """

        def on_all_servers(*inner: tf.Tensor) -> None:
            for server in range(self.servers):
                with tf.device(device(server)):
                    work(server, *inner)

        _function(on_all_servers, *map(tf.TensorSpec.from_tensor, arguments))(*arguments)

    def _fill(self, table: Table, draw: initial_rows.Draw, seed: int, variable: tf.Variable, server: int) -> None:
        """Draw a server's rows of a table, a block at a time."""
        count, block = -(-table.rows // self.servers), max(1, _BLOCK // (self.dimension * self.dtype.size))
        first = self._bases[table] // self.servers

        def put(done: Any, size: Any) -> None:
            rows = draw([size, self.dimension], tf.stack([seed + server, done]))
            RowHandle(variable, {}, tf.range(first + done, first + done + size)).put("", rows)

        def body(done: tf.Tensor) -> tf.Tensor:
            size = tf.minimum(block, count - done)
            put(done, size)
            return done + size

        if count * len(self.tables) <= block:  # all tables together fit in a block
            put(0, count)
        else:
            tf.while_loop(lambda done: done < count, body, (tf.constant(0),), parallel_iterations=1)

    # Slices, for checkpoints

    def row_ranges(self, table: Table, slot: str, size: int | None = None) -> Iterator[RowRange]:
        """Yield the ranges of a table's or slot's rows, of about `size` bytes, in order; each is read and written at once."""
        block = max(1, (size or _BLOCK) // (self.dimension * self.dtype.size * self.servers)) * self.servers
        for first in range(0, table.rows, block):
            yield RowRange(table, slot, first, min(block, table.rows - first))

    def read(self, row_range: RowRange) -> tf.Tensor:
        """Return the rows of a range, [count, dimension]; each server's are of another moment."""
        first, count = self._range(row_range)
        if row_range.slot not in self._readers:
            self._readers[row_range.slot] = self._reader(row_range.slot)
        return self._readers[row_range.slot](tf.constant(first), tf.constant(count))[: row_range.count]

    def first_rows(self) -> dict[tuple[Table, str], tf.Tensor]:
        """Return the first row of each table and slot, [1, dimension]; the first server has it."""

        def read() -> list[tf.Tensor]:
            with tf.device(device(0)):
                indices = tf.constant([self._bases[table] // self.servers for table in self.tables])
                return [RowHandle(self._variables[slot][0], {}, indices).get() for slot in self.slots]

        if self._first_reader is None:
            self._first_reader = _function(read)
        of_slots = zip(self.slots, self._first_reader(), strict=True)
        return {(table, slot): rows[index : index + 1] for slot, rows in of_slots for index, table in enumerate(self.tables)}

    def write(self, row_range: RowRange, rows: tf.Tensor) -> None:
        """Replace the rows of a range."""
        first, count = self._range(row_range)
        padded = tf.pad(rows, [[0, count * self.servers - row_range.count], [0, 0]])
        if row_range.slot not in self._writers:
            self._writers[row_range.slot] = self._writer(row_range.slot)
        self._writers[row_range.slot](tf.constant(first), tf.constant(count), padded)

    def _range(self, row_range: RowRange) -> tuple[int, int]:
        return (self._bases[row_range.table] + row_range.first) // self.servers, -(-row_range.count // self.servers)

    def _reader(self, slot: str) -> Any:
        variables = self._variables[slot]

        def read(first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
            rows = []
            for server, variable in enumerate(variables):
                with tf.device(device(server)):
                    rows.append(RowHandle(variable, {}, tf.range(first, first + count)).get())
            return tf.reshape(tf.stack(rows, 1), [-1, self.dimension])

        return _function(read, _INT32_SCALAR, _INT32_SCALAR)

    def _writer(self, slot: str) -> Any:
        variables = self._variables[slot]

        def write(first: tf.Tensor, count: tf.Tensor, rows: tf.Tensor) -> None:
            each = tf.unstack(tf.reshape(rows, [count, self.servers, self.dimension]), self.servers, 1)
            for server, variable in enumerate(variables):
                with tf.device(device(server)):
                    RowHandle(variable, {}, tf.range(first, first + count)).put("", each[server])

        return _function(write, _INT32_SCALAR, _INT32_SCALAR, tf.TensorSpec([None, self.dimension], self.dtype))

    # Steps

    def look_up(self, calls: Sequence[LayerCall]) -> "GroupLookup":
        """Return the rows of all `calls` of these tables; on the caller's device."""
        unique, inverse = tf.unique(self._keys(calls), tf.int32)
        if self.servers == 1:
            local, positions = [unique], [tf.range(tf.size(unique))]
        else:
            owner = tf.cast(unique % self.servers, tf.int32)
            local = tf.dynamic_partition(unique // self.servers, owner, self.servers)
            positions = tf.dynamic_partition(tf.range(tf.size(unique)), owner, self.servers)
        by_server = []
        for server, indices in enumerate(local):
            with tf.device(device(server)):
                by_server.append(RowHandle(self._variables[""][server], {}, indices).get())
        rows = by_server[0] if self.servers == 1 else tf.dynamic_stitch(positions, by_server)
        rows = tf.reshape(rows, [-1, self.dimension])
        return GroupLookup(self, rows, inverse, local, positions, [call.ids for call in calls])

    def _keys(self, calls: Sequence[LayerCall]) -> tf.Tensor:
        """Return keys for the ids of all calls, one after the other; see `check_ids`."""
        if len(calls) == 1:
            (call,) = calls
            ids = tf.reshape(check_ids(call.table, call.ids), [-1])
            return tf.cast(ids, self.key_dtype) + tf.constant(self._bases[call.table], self.key_dtype)
        ids = tf.concat([tf.cast(tf.reshape(call.ids, [-1]), tf.int64) for call in calls], 0)
        of_call = tf.repeat(tf.range(len(calls)), tf.stack([tf.size(call.ids) for call in calls]))
        ids = _check_ids_of([call.table for call in calls], of_call, ids)
        bases = tf.constant([self._bases[call.table] for call in calls], self.key_dtype)
        return tf.cast(ids, self.key_dtype) + tf.gather(bases, of_call)

    def no_rows(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return empty indices of rows on a server, and their empty gradients."""
        return tf.zeros([0], self.key_dtype), tf.zeros([0, self.dimension], self.dtype)

    def used(self, server: int, indices: tf.Tensor) -> RowHandle:
        """Return the rows at `indices` of a server, to be updated there."""
        return RowHandle(self._variables[""][server], {slot: self._variables[slot][server] for slot in self._initial_slots}, indices)


_INT32_SCALAR = tf.TensorSpec([], tf.int32)


def _function(python: Callable[..., Any], *arguments: tf.TensorSpec) -> Any:
    """Return a TensorFlow function that is traced now."""
    return tf.function(python, autograph=False).get_concrete_function(*arguments)


OUTSIDE = "embedding id outside of its table: "  # begins the message of a step's error


def check_ids(table: Table, ids: tf.Tensor) -> tf.Tensor:
    """Return `ids` of a table.

    Raises:
        tf.errors.InvalidArgumentError: one of them is outside of the table, when it runs.
    """
    low, high = tf.reduce_min(ids), tf.reduce_max(ids)
    wrong = tf.where(low < 0, low, high)
    valid = tf.logical_or(tf.equal(tf.size(ids), 0), tf.logical_and(low >= 0, tf.cast(high, tf.int64) < table.rows))
    # Not tf.debugging.Assert, which adds a branch: that takes longer to trace than the rest of a look-up.
    with tf.control_dependencies([tf.raw_ops.Assert(condition=valid, data=[_outside(table), wrong])]):
        return tf.identity(ids)


def _check_ids_of(tables: Sequence[Table], of_table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Return int64 `ids`, each of the table with the index in `of_table`, by a few operations for all tables.

    Raises:
        tf.errors.InvalidArgumentError: one of them is outside of its table, when it runs.
    """
    rows = tf.constant([table.rows for table in tables], tf.int64)
    outside = (ids < 0) | (ids >= tf.gather(rows, of_table))
    first = tf.argmax(tf.cast(tf.concat([outside, [True]], 0), tf.int32))  # past the end if there is none
    table, wrong = (tf.gather(tf.concat([values, tf.zeros([1], values.dtype)], 0), first) for values in (of_table, ids))
    message = tf.gather(tf.constant([_outside(table) for table in tables]), table)
    with tf.control_dependencies([tf.raw_ops.Assert(condition=~tf.reduce_any(outside), data=[message, wrong])]):
        return tf.identity(ids)


def _outside(table: Table) -> str:
    return f"{OUTSIDE}the layer {table.name} has {table.rows:,} rows, and was given the id"


@dataclass(frozen=True)
class GroupLookup:
    """The rows that a step uses, each once: [unique, dimension]; where they are, and which of them each call gets."""

    group: TableGroup
    rows: tf.Tensor
    inverse: tf.Tensor
    local: Sequence[tf.Tensor]
    positions: Sequence[tf.Tensor]
    ids: Sequence[tf.Tensor]

    def each(self, rows: tf.Tensor) -> list[tf.Tensor]:
        """Return the rows of each call, shaped like its ids, gathered from `rows`, those of the unique ids."""
        sizes = tf.stack([tf.size(ids) for ids in self.ids])
        by_call = []
        for ids, inverse in zip(self.ids, tf.split(self.inverse, sizes, num=len(self.ids)), strict=True):
            taken = tf.gather(rows, tf.reshape(inverse, tf.shape(ids)))
            taken.set_shape([*ids.shape, self.group.dimension])
            by_call.append(taken)
        return by_call
