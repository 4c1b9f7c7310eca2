"""The tables of one model on parameter servers: their placement, their part in a step, and their rows for checkpoints."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import keras
import tensorflow as tf

from trainer.engine.byte_sizes import byte_size
from trainer.engine.embeddings import layers, row_updates, server_memory
from trainer.engine.embeddings.layers import LayerCall, Table
from trainer.engine.embeddings.server_rows import OUTSIDE, GroupLookup, RowRange, TableGroup
from trainer.engine.embeddings.table_parts import TableParts
from trainer.engine.parameter_server.restart_on_chief_exit import rows_marker
from trainer.engine.parameter_server.state import PackGroup, device
from trainer.engine.parameter_server.worker_pool import translate_peer_errors
from trainer.engine.session import PeerLostError, cause
from trainer.engine.train_config import TrainConfig
from trainer.workloads.errors import WorkloadError


@dataclass(frozen=True)
class RowGradients:
    """Gradients of the rows of a look-up, [unique, dimension]."""

    lookup: GroupLookup
    values: tf.Tensor

    def of_server(self, server: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the indices of a server's rows on it, and their gradients."""
        is_single = self.lookup.group.servers == 1
        return self.lookup.local[server], self.values if is_single else tf.gather(self.values, self.lookup.positions[server])


class BatchLookups:
    """All rows that a batch uses. Gradients are taken of `rows`."""

    def __init__(self, calls: Sequence[LayerCall], lookups: Sequence[tuple[GroupLookup, Sequence[int]]]) -> None:
        self._calls, self._lookups = calls, lookups
        self.rows = [lookup.rows for lookup, _ in lookups]

    @contextmanager
    def rows_supplied(self) -> Iterator[None]:
        """Inside this block each call of a layer gets the rows that were looked up for it. The calls come in the order in which they were recorded."""
        rows: list[Any] = [None] * len(self._calls)
        for lookup, indices in self._lookups:
            for index, each in zip(indices, lookup.each(lookup.rows), strict=True):
                rows[index] = each
        with layers.looking_up(layers.replay(self._calls, rows)):
            yield

    def gradients(self, values: Sequence[Any]) -> list[RowGradients]:
        """Return the gradients of `rows` as those of look-ups."""
        return [RowGradients(lookup, tf.convert_to_tensor(one)) for (lookup, _), one in zip(self._lookups, values, strict=True)]


@contextmanager
def _translate_server_errors() -> Iterator[None]:
    """Turn every error of TensorFlow into PeerLostError: a server that was started again has lost its state."""
    try:
        with translate_peer_errors():
            yield
    except tf.errors.OpError as error:
        raise PeerLostError(cause(error)) from error


NO_LOOKUPS = BatchLookups([], [])


class Tables:
    """The tables of a model, on `servers` parameter servers, which update them together or, with `per_server`, each by itself in rounds."""

    def __init__(
        self, found: Sequence[Table], optimizer: keras.optimizers.Optimizer, config: TrainConfig, servers: int, *, per_server: bool
    ) -> None:
        """Check that they can be trained; nothing is created yet.

        Raises:
            WorkloadError: the optimizer, or a setting, is not supported with tables.
        """
        names = [table.name for table in found]
        self.all = list(found)
        self._seed, self._scratch_dir, self._written = config.seed, config.scratch_dir, False
        self.blocked_while_saved = per_server  # the next round waits for the rows of a checkpoint
        self._rule = row_updates.rule_of(optimizer, names)
        self._decays = row_updates.decays(optimizer)  # not the servers' optimizer: the rows are none of its variables
        unsupported = {
            "gradients.accumulate": config.train.gradients.accumulate > 1,
            "gradients.clip_global_norm": per_server and servers > 1 and bool(optimizer.global_clipnorm),
            "jit_compile": config.train.jit_compile,
        }
        for setting in (name for name, is_set in unsupported.items() if is_set):
            raise WorkloadError(
                f"train.{setting} is not possible beside embedding layers on {'synchronous ' if per_server else ''}parameter servers "
                f"({', '.join(names)}); leave it out, or keep the layers whole with train.embeddings.whole"
            )

        def kind(table: Table) -> tuple[int, str, bool]:
            return table.dimension, table.dtype.name, bool(table.layer.trainable)

        slots = self._rule.slots(optimizer)
        self._table_groups = [
            TableGroup(list(members), servers, slots, trained=trained)
            for (*_, trained), members in groupby(sorted(found, key=kind), key=kind)
        ]
        self._group_of = {table: group for group in self._table_groups for table in group.tables}

    def create(self) -> None:
        """Allocate the rows, on the servers.

        Raises:
            WorkloadError: the servers have not enough memory.
        """
        servers = self._table_groups[0].servers
        server_memory.check(sum(group.bytes_of_server for group in self._table_groups), servers)
        for server in range(servers):
            with tf.device(device(server)):
                tf.io.write_file(os.fspath(rows_marker(self._scratch_dir, f"ps-{server}")), "")
        for group in self._table_groups:
            group.create()
        for table in self.all:
            table.look_up = self._rows_of

    def initialize(self) -> None:
        """Set the rows to their initial values, unless those of a checkpoint were written, and free the memory of values that the model gave."""
        for index, group in enumerate(self._table_groups):
            if not self._written:
                group.initialize([self._seed, index])
            group.free_initial_rows()

    def described(self) -> str:
        """Return a notice about the tables."""
        servers = self._table_groups[0].servers
        total = sum(group.bytes_of_server for group in self._table_groups) * servers
        named = layers.described([table.layer for table in self.all])
        return f"embedding layers on {servers} ps: {named}; {byte_size(total)} with the optimizer's slots"

    # Steps

    def look_up(self, run: Callable[[], object]) -> BatchLookups:
        """Return the rows that the model needs in `run`, which calls the model."""
        calls = layers.record_calls(run)
        lookups = []
        for group in self._table_groups:
            indices = [index for index, call in enumerate(calls) if self._group_of[call.table] is group]
            if indices:
                lookups.append((group.look_up([calls[index] for index in indices]), indices))
        return BatchLookups(calls, lookups)

    @contextmanager
    def look_up_for_evaluation(self, run: Callable[[], object]) -> Iterator[None]:
        """Let `run`, called inside, get the rows of all its calls by one look-up, or one by one if that is not possible.

        To find its calls, `run` is called once more, which changes no variable of Keras.
        """
        supplied: AbstractContextManager[None] = nullcontext()
        # Ignore errors of calls that cannot be batched, which a layer or AutoGraph may have wrapped; `run` raises any other again.
        with suppress(Exception), keras.StatelessScope():
            supplied = self.look_up(run).rows_supplied()
        with supplied:
            yield

    def _rows_of(self, table: Table, ids: tf.Tensor) -> tf.Tensor:
        """Return the rows of one call by a look-up of its own, in evaluations."""
        lookup = self._group_of[table].look_up([LayerCall(table, ids, rows=ids)])  # the rows of a call are not read
        return lookup.each(lookup.rows)[0]

    @property
    def trained_groups(self) -> list[TableGroup]:
        """Return the groups of tables that are trained."""
        return [group for group in self._table_groups if group.trained]

    def update(
        self, group: TableGroup, server: int, indices: tf.Tensor, gradient: tf.Tensor, optimizer: Any, rate: tf.Tensor, count: tf.Tensor
    ) -> None:
        """Update the rows at `indices` of a server, each of them once, on the caller's device."""
        row_updates.update(self._rule, optimizer, group.used(server, indices), gradient, rate, count, decays=self._decays)

    def apply(self, gradients: Sequence[Any], dense: PackGroup, send: Callable[[tf.Tensor, int], tf.Tensor]) -> list[tf.Tensor]:
        """Update the rows that a step used, by the RowGradients among `gradients`; return the others.

        `dense` are the other variables on the servers, whose optimizer has the learning rate and counts steps; `send` sends a tensor to a
        server.
        """
        optimizer = dense.optimizer
        used = [gradient for gradient in gradients if isinstance(gradient, RowGradients) and gradient.lookup.group.trained]
        dense_gradients = [gradient for gradient in gradients if not isinstance(gradient, RowGradients)]
        others, values = row_updates.clipped(optimizer, dense_gradients, [gradient.values for gradient in used])
        with tf.device(device(dense.server)):
            rate, count = row_updates.rate_and_count(optimizer)
        for row_gradients, clipped in zip(used, values, strict=True):
            group = row_gradients.lookup.group
            for server in range(group.servers):
                indices, gradient = RowGradients(row_gradients.lookup, clipped).of_server(server)
                gradient = send(gradient, server)
                with tf.device(device(server)):
                    self.update(group, server, indices, gradient, optimizer, rate, count)
        return others

    def apply_mean(self, dense: PackGroup, gradients: Sequence[tf.Tensor], rows: Sequence[tf.IndexedSlices]) -> list[tf.Tensor]:
        """Update rows on the server of `dense` by `rows`, means in the order of `trained_groups`; return `gradients`, clipped."""
        optimizer = dense.optimizer
        others, values = row_updates.clipped(optimizer, gradients, [slices.values for slices in rows])
        rate, count = row_updates.rate_and_count(optimizer)
        for group, mean, gradient in zip(self.trained_groups, rows, values, strict=True):
            self.update(group, dense.server, mean.indices, gradient, optimizer, rate, count)
        return others

    # Checkpoints

    def files(self) -> TableParts:
        """Return the parts of checkpoints for the tables, with the object that writes and reads rows there."""
        from trainer.engine.embeddings.table_files import TableFiles

        files = TableFiles(self)
        return TableParts(files.parts, sum(table.bytes * len(self.slots(table)) for table in self.all), files)

    @contextmanager
    def translate_errors(self, config: TrainConfig) -> Iterator[None]:
        """Turn TensorFlow's error about an id outside of a table into a WorkloadError with layer, rows and id; of lost servers into PeerLostError."""
        try:
            with translate_peer_errors():
                yield
        except tf.errors.InvalidArgumentError as error:
            match = re.search(re.escape(OUTSIDE) + r"(the layer .*?)\] \[(-?\d+)\]", str(error.message), re.DOTALL)
            if not match:
                raise
            raise WorkloadError(
                f"train.workload {config.train.workload}: {match[1]} {match[2]}; ids are from 0 to the rows less one. Hash them into that range, "
                "or make the layer larger"
            ) from error

    def slots(self, table: Table) -> Sequence[str]:
        """Return the slots of each row of a table: see TableGroup.slots."""
        return self._group_of[table].slots

    def row_ranges(self) -> Iterator[RowRange]:
        """Yield all rows of all tables and slots, in pieces that fit into memory."""
        for table in self.all:
            for slot in self.slots(table):
                yield from self._group_of[table].row_ranges(table, slot)

    def table_row_ranges(self, table: Table, size: int) -> Iterator[RowRange]:
        """Yield the rows of a table in pieces of about `size` bytes."""
        return self._group_of[table].row_ranges(table, "", size)

    def read(self, row_range: RowRange) -> tf.Tensor:
        """Return the rows of a range, [count, dimension]."""
        with _translate_server_errors():
            return self._group_of[row_range.table].read(row_range)

    def first_rows(self) -> dict[tuple[Table, str], tf.Tensor]:
        """Return the first row of each table and slot, [1, dimension]."""
        with _translate_server_errors():
            return {table_and_slot: row for group in self._table_groups for table_and_slot, row in group.first_rows().items()}

    def write(self, row_range: RowRange, rows: tf.Tensor) -> None:
        """Replace the rows of a range."""
        self._written = True
        with _translate_server_errors():
            self._group_of[row_range.table].write(row_range, rows)
