"""The rows of tables in a checkpoint: streamed from the servers to the disk, and back, in pieces that fit into memory.

The checkpoint is an ordinary one. `tf.train.Checkpoint` writes its dense part: everything but the tables, and the first row of each table.
SaveV2 writes each further piece as a slice of its tensor, in a file of its own on the disk. MergeV2Checkpoints merges their indices in
memory; it reads no data.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from trainer.engine.checkpoints import InMemoryCheckpoint
from trainer.engine.embeddings.layers import RemoteRows, slice_spec
from trainer.engine.embeddings.server_rows import RowRange
from trainer.engine.embeddings.sharded_tables import Tables

# Approximate size of a file of rows. Each file is on the disk before the next is written, so a slow disk shows progress.
_FILE_BYTES = 16 * 2**20
_ERRNOS = {os.strerror(number): number for number in errno.errorcode}
_ATTRIBUTE = ".ATTRIBUTES/VARIABLE_VALUE"


class NonFiniteError(Exception):
    """Rows to be saved are not finite; such rows are never saved."""


class TableFiles:
    """Writes and reads the rows of `tables` as parts of checkpoints; `parts` has placeholders for tables and slots, for tf.train.Checkpoint."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._remote_rows: dict[tuple[int, str], RemoteRows] = {}
        layers: dict[str, tf.train.Checkpoint] = {}
        for index, table in enumerate(tables.all):
            self._remote_rows[index, ""] = table
            slots = {slot: RemoteRows(table.rows, table.dimension, table.dtype) for slot in tables.slots(table) if slot}
            self._remote_rows |= {(index, slot): remote for slot, remote in slots.items()}
            layers[str(index)] = tf.train.Checkpoint(**slots)
        self.parts = {"tables": tf.train.Checkpoint(**layers)}

    def take_first_rows(self) -> None:
        """Take the first row of each table and slot, for the part of a checkpoint that is written now."""
        first = self._tables.first_rows()
        for (index, slot), remote in self._remote_rows.items():
            remote.take_first_row(first[self._tables.all[index], slot])

    def streamed(self, checkpoint: InMemoryCheckpoint, saved: tf.train.Checkpoint) -> "StreamedCheckpoint":
        """Return `checkpoint`, which was written from `saved`, with the rows added."""
        paths = _paths(saved)
        keys = {(self._tables.all[index], slot): _name(paths[remote]) for (index, slot), remote in self._remote_rows.items()}
        return StreamedCheckpoint.of(checkpoint, self._tables, by_file(self._tables.row_ranges()), keys)

    def mismatch(self, path: str, saved: tf.train.Checkpoint) -> str:
        """Return which table has another shape in a checkpoint; nothing if all fit, or the checkpoint lacks one."""
        paths, graph, shapes = _paths(saved), object_graph(path), tf.train.load_checkpoint(path).get_variable_to_shape_map()
        for (index, _), remote in self._remote_rows.items():
            with suppress(StopIteration, IndexError):  # it has no such table: TensorFlow reports that
                saved_shape = shapes.get(_key(graph, paths[remote]))
                if saved_shape and saved_shape != [remote.rows, remote.dimension]:
                    return f"the layer {self._tables.all[index].name} has {saved_shape} there, and {[remote.rows, remote.dimension]} here"
        return ""

    def restore(self, path: str, saved: tf.train.Checkpoint) -> None:
        """Read all rows from a checkpoint of `saved`, one whose other parts fit."""
        paths, graph = _paths(saved), object_graph(path)
        keys = {(self._tables.all[index], slot): _key(graph, paths[remote]) for (index, slot), remote in self._remote_rows.items()}
        for row_range in self._tables.row_ranges():
            table = row_range.table
            name = slice_spec(table.rows, table.dimension, row_range.first, row_range.count)
            (rows,) = tf.raw_ops.RestoreV2(
                prefix=path, tensor_names=[keys[table, row_range.slot]], shape_and_slices=[name], dtypes=[table.dtype]
            )
            self._tables.write(row_range, rows)


def by_file(row_ranges: Iterable[RowRange]) -> list[list[RowRange]]:
    """Return the row ranges of each file, together of about _FILE_BYTES."""
    files: list[list[RowRange]] = []
    size = _FILE_BYTES
    for row_range in row_ranges:
        rows = row_range.count * row_range.table.dimension * row_range.table.dtype.size
        if size + rows > _FILE_BYTES:
            files.append([])
            size = 0
        files[-1].append(row_range)
        size += rows
    return files


def _paths(saved: tf.train.Checkpoint) -> Any:
    """Return the path to each object of a checkpoint: the names of the attributes on it."""
    _, paths = tf.__internal__.tracking.ObjectGraphView(saved).breadth_first_traversal()
    return paths


def _name(path: Sequence[Any]) -> str:
    """Return the tensor name that TensorFlow gives the object at `path` when it writes a checkpoint."""
    return "/".join([*(step.name.replace(".", "..").replace("/", ".S") for step in path), _ATTRIBUTE])


def object_graph(path: str) -> Any:
    """Return the objects of a checkpoint, with the names of their tensors."""
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(tf.compat.v1.train.NewCheckpointReader(path).get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH"))  # reads from memory, too
    return graph


def _key(graph: Any, path: Sequence[Any]) -> str:
    """Return the name of an object's tensor in a checkpoint; TensorFlow names it after the first path by which it reached the object when saving."""
    node = graph.nodes[0]
    for step in path:
        node = graph.nodes[next(child.node_id for child in node.children if child.local_name == step.name)]
    return str(node.attributes[0].checkpoint_key)


@dataclass(frozen=True)
class StreamedCheckpoint(InMemoryCheckpoint):
    """A checkpoint in memory, except its rows: they are read from the servers while it is written, file by file."""

    dense_file: str = ""
    tables: Tables | None = None
    contents: Sequence[Sequence[RowRange]] = field(default=())
    keys: dict[Any, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, checkpoint: InMemoryCheckpoint, tables: Tables, contents: Sequence[Sequence[RowRange]], keys: dict[Any, str]
    ) -> "StreamedCheckpoint":
        """Return `checkpoint` with rows: `contents` are the row ranges of each file, `keys` the names of tensors by table and slot."""
        (data, size), (index, index_size) = checkpoint.files
        name, count = index.removesuffix(".index"), len(contents) + 1
        rows = [sum(row_range.count * row_range.table.dimension * row_range.table.dtype.size for row_range in file) for file in contents]
        files = [(f"{name}.data-{number:05d}-of-{count:05d}", bytes_) for number, bytes_ in enumerate([size, *rows])]
        return cls(checkpoint.step, checkpoint.directory, [*files, (index, index_size)], data, tables, contents, keys)

    def write(self, name: str, path: Path) -> Iterator[int]:
        """Write a file to `path`; the index after all others."""
        number = [file_name for file_name, _ in self.files].index(name)
        if 0 < number < len(self.files) - 1:
            yield self._write_rows(number, path)
        else:
            yield from super().write(name, path)

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content of the dense part or of the index."""
        return self._index() if name == self.files[-1][0] else super().chunks(self.dense_file)

    def discard(self) -> None:
        """Free the memory."""
        tf.io.gfile.rmtree(self.directory)

    def _write_rows(self, number: int, path: Path) -> int:
        """Write a file of rows, and return its size. It is written directly to the disk, because a copy through memory would take longer."""
        assert self.tables is not None  # noqa: S101 - see `of`
        names, slices, tensors = [], [], []
        for row_range in self.contents[number - 1]:
            rows = self.tables.read(row_range)
            # Workers continue after the dense variables were checked. The first row, too, may have become nan only now: it stays nan.
            if not tf.reduce_all(tf.math.is_finite(rows)):
                raise NonFiniteError(f"rows of the layer {row_range.table.name} are not finite")
            skipped = 1 if row_range.first == 0 else 0  # the dense part has the first row
            if row_range.count == skipped:
                continue
            names.append(self.keys[row_range.table, row_range.slot])
            slices.append(slice_spec(row_range.table.rows, row_range.table.dimension, row_range.first + skipped, row_range.count - skipped))
            tensors.append(rows[skipped:])
        written = path.with_name(f"{path.name}.data-00000-of-00001")
        try:
            with _translate_to_os_errors(path):
                tf.raw_ops.SaveV2(prefix=str(path), tensor_names=names, shape_and_slices=slices, tensors=tensors)
            with written.open("ab") as file:  # created empty if there are no rows
                os.fsync(file.fileno())
                if hasattr(os, "posix_fadvise"):  # gigabytes would displace the rest of the page cache
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            tf.io.gfile.copy(f"{path}.index", f"{self.directory}/{number}.index", overwrite=True)
            return written.replace(path).stat().st_size
        finally:
            for temporary in path.parent.glob(f"{path.name}.*"):
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)

    def _index(self) -> Iterator[bytes]:
        index, _ = self.files[-1]
        # Merging removes the files that it merges, and this may be called again.
        tf.io.gfile.copy(f"{self.directory}/{index}", f"{self.directory}/0.index", overwrite=True)
        for number in range(len(self.contents) + 1):  # merging needs the files, but reads none
            _empty(f"{self.directory}/{number}.data-00000-of-00001")
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=[f"{self.directory}/{number}" for number in range(len(self.contents) + 1)],
            destination_prefix=f"{self.directory}/merged",
            delete_old_dirs=False,
        )
        yield from super().chunks("merged.index")


@contextmanager
def _translate_to_os_errors(path: Path) -> Iterator[None]:
    """Turn an error of TensorFlow, which ends with the operating system's message, into an OSError."""
    try:
        yield
    except tf.errors.OpError as error:
        cause = error.message.partition(" [Op:")[0].rpartition("; ")[2]
        raise OSError(_ERRNOS.get(cause, errno.EIO), cause, str(path)) from error


def _empty(path: str) -> None:
    if tf.io.gfile.exists(path):  # opening it for writing would not truncate it
        tf.io.gfile.remove(path)
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(b"")
