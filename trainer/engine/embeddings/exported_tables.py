"""SavedModels of models whose tables are spread over parameter servers: rows are streamed into them, so that no process holds a table.

A SavedModel has a checkpoint of its variables. It is written to memory with a variable of each table's full shape that has no value, and so takes no
memory: that checkpoint has only its first row. The other rows are read from the servers while the files are written to a disk; see `table_files`.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import keras
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

from trainer.engine.checkpoints import InMemoryCheckpoint, read_file, write_file
from trainer.engine.embeddings import layers
from trainer.engine.embeddings.layers import Table, slice_spec
from trainer.engine.embeddings.server_rows import RowRange, check_ids
from trainer.engine.embeddings.sharded_tables import Tables
from trainer.engine.embeddings.table_files import StreamedCheckpoint, by_file, object_graph
from trainer.engine.export_formats import FORMATS, save_if_possible
from trainer.settings import Export

_VARIABLES = "variables"  # the directory of a SavedModel with its checkpoint, and the name of that
# Optional: TensorFlow distinguishes models by it. Removed, because it is computed from the checkpoint with only the first rows.
_FINGERPRINT = "fingerprint.pb"
# Bytes of rows that are read at once, about the size of a file: a few times as much is in memory meanwhile.
_READ = 4 * 2**20
_SILENT = 10.0  # seconds without an answer of the disk after which the export is given up: training has continued meanwhile
_FORMAT = "saved_model"
_exports = itertools.count()


def omitted_formats(export: Export) -> str:
    """Return a notice about formats in which a model with tables cannot be exported; nothing if there are none."""
    if "keras" not in export.formats:
        return ""
    why = "a Keras file would need all rows of its large embedding layers in this process's memory"
    return (
        f"the model is exported as a SavedModel alone: {why}"
        if "saved_model" in export.formats
        else f"the model is not exported: {why}; add saved_model to train.export.formats"
    )


class _TableVariable(UninitializedVariable):
    """A variable that replaces a table in an exported model: it has the table's shape, and only its first row."""

    def __init__(self, table: Table, name: str, first_row: tf.Tensor) -> None:
        super().__init__(shape=[table.rows, table.dimension], dtype=table.dtype, trainable=bool(table.layer.trainable), name=name)
        self._key, self._first_row = slice_spec(table.rows, table.dimension, 0, 1), first_row

    def _serialize_to_tensors(self) -> dict[str, dict[str, tf.Tensor]]:
        return {"VARIABLE_VALUE": {self._key: self._first_row}}


class ExportedModel:
    """A SavedModel with tables that is to be written: in memory until it is discarded, except the rows.

    Once loaded, each table is one variable, and `serve` raises InvalidArgumentError for an id outside of it.
    """

    can_wait = False  # the servers continue to change the rows
    formats = (_FORMAT,)

    def __init__(self, model: keras.Model, tables: Tables) -> None:
        """Create it from the model's current state; rows are read when it is written.

        Raises:
            PeerLostError: a server is gone.
            Exception: any error that the model's own code raises during the export.
        """
        self._directory = f"ram://exports-{next(_exports)}"
        self._blocks, self._cancelled = tables.blocked_while_saved, False
        try:
            self._variables = self._export(model, tables)
        except Exception:
            with suppress(tf.errors.NotFoundError):  # nothing was written yet
                self.discard()
            raise
        self._progress_at = time.monotonic()  # when the last piece was on the disk

    def _export(self, model: keras.Model, tables: Tables) -> StreamedCheckpoint:
        """Write the model without rows to memory; return the checkpoint of its variables."""
        names = {table: f"tables/{number}" for number, table in enumerate(tables.all)}
        matrices = {table: _TableVariable(table, name, tables.read(RowRange(table, "", 0, 1))) for table, name in names.items()}
        with layers.looking_up(lambda table, ids: tf.gather(matrices[table], check_ids(table, ids))):
            model.export(self._directory, format="tf_saved_model", verbose=False)
        tf.io.gfile.remove(f"{self._directory}/{_FINGERPRINT}")
        variables_directory = f"{self._directory}/{_VARIABLES}"
        keys = _keys(f"{variables_directory}/{_VARIABLES}")
        used = {table: keys[name] for table, name in names.items() if name in keys}  # a model may not call some
        row_ranges = (row_range for table in used for row_range in tables.table_row_ranges(table, _READ))
        files = [
            (name, tf.io.gfile.stat(f"{variables_directory}/{name}").length) for name in sorted(tf.io.gfile.listdir(variables_directory))
        ]
        rows = {(table, ""): key for table, key in used.items()}
        return StreamedCheckpoint.of(InMemoryCheckpoint(0, variables_directory, files), tables, by_file(row_ranges), rows)

    @property
    def bytes(self) -> int:
        """Return about how many bytes its variables take on a disk."""
        return self._variables.size

    def write(self, destination: Path) -> None:
        """Write it into a directory.

        Raises:
            OSError: the disk does not take it, or not in time.
            PeerLostError: a server is gone.
            NonFiniteError: rows are not finite.
        """
        for _ in self._pieces(destination / FORMATS[_FORMAT][0]):
            silent, self._progress_at = time.monotonic() - self._progress_at, time.monotonic()
            if silent > _SILENT:
                raise OSError(f"it did not answer for {silent:.0f} s, while rows were written")
            if self._cancelled:
                raise OSError("the task was asked to stop, while rows were written")

    def _pieces(self, destination: Path) -> Iterator[int]:
        """Write it into a new directory; yield the size of each piece that is on the disk."""
        for directory, _, names in tf.io.gfile.walk(self._directory):
            target = destination / directory.removeprefix(self._directory).strip("/")
            target.mkdir()
            if target.name != _VARIABLES:
                for name in names:
                    yield from write_file(target / name, read_file(f"{directory}/{name}"))
        for name, _ in self._variables.files:
            yield from self._variables.write(name, destination / _VARIABLES / name)

    def blocks_training(self, stop_requested: Callable[[], bool]) -> bool:
        """Return whether training waits for it: in synchronous training, while the disk answers. Also cancels it once `stop_requested` returns True."""
        self._cancelled = self._blocks and (self._cancelled or stop_requested())
        return self._blocks and time.monotonic() - self._progress_at < _SILENT

    def discard(self) -> None:
        """Free the memory."""
        tf.io.gfile.rmtree(self._directory)


def save(tables: Tables, model: keras.Model, formats: Sequence[str], notify: Callable[[str], None]) -> ExportedModel | None:
    """Return the model, to be written as a SavedModel; return None if `formats` lack that, or, after `notify` of the reason, if it cannot be one.

    Raises:
        OSError: there is no space for it in memory.
        PeerLostError: a server is gone.
    """
    return save_if_possible(_FORMAT, partial(ExportedModel, model, tables), notify) if _FORMAT in formats else None


def _keys(path: str) -> dict[str, str]:
    """Return name of a variable -> name of its tensor in a checkpoint."""
    return {attribute.full_name: attribute.checkpoint_key for node in object_graph(path).nodes for attribute in node.attributes}
