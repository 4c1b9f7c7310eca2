"""Saves and restores the chief's model, optimizer and global step, as plain TensorFlow checkpoints.

The format is one for all strategies: `tf.train.Checkpoint(model=..., optimizer=..., step=..., seeds=[...], global_seed=[...],
learning_rate=..., callbacks=...)`, and parts of large embedding layers' tables.
A checkpoint is complete before the `checkpoint` file names it, so a kill at any moment leaves the previous one. `capture` creates it in memory, and
another thread can `write` it while training continues. Only rows on parameter servers are not copied: `write` reads them there
(table_files.py).

`learning_rate` is the rate that the optimizer was built with, as text (see `schedules.described`). The checkpoint also has the optimizer's
current rate, which may be lower by now. If the spec's rate has changed, a resume uses it and ignores the saved current rate.
`callbacks` are the bytes of callback_state, empty without callbacks.
"""

import errno
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainer.engine import global_seed, schedules
from trainer.engine.byte_sizes import byte_size
from trainer.engine.embeddings.table_parts import TableParts
from trainer.engine.model_ops import seeds
from trainer.engine.optimizer_copy import copied
from trainer.engine.run_state import write_atomically
from trainer.engine.session import PeerLostError, first_line
from trainer.workloads.errors import WorkloadError

# The key of a variable's value in a checkpoint.
_VALUE = "{}/.ATTRIBUTES/VARIABLE_VALUE"
_BUILT_WITH = _VALUE.format("learning_rate")
_GLOBAL_SEED = _VALUE.format("global_seed/0")
_CALLBACKS = _VALUE.format("callbacks")
_INCOMPLETE_SUFFIX = ".part"  # of the name of a file that is not complete yet
_CHUNK = 4 * 2**20  # bytes that are read at once
_FSYNC_EVERY = 16 * 2**20  # bytes after which a file is flushed to the disk, so that progress shows on a slow one
_captures = itertools.count()
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNWRITABLE = _NO_SPACE | {errno.EROFS}
# Remedies if a checkpoint's large embedding layers were updated by rows and are not now, and the reverse.
_BY_ROWS_HINT = (
    "; its large embedding layers were updated by rows: go on with strategy single, multi_worker_mirrored or parameter_server, and the optimizer, "
    "clipping and train.embeddings that it was saved with"
)
_WHOLE_HINT = "; where large embedding layers were whole when it was saved, name them in train.embeddings.whole"
_CHOOSE = "or choose another volume"
_ANY_SCHEDULE = keras.optimizers.schedules.ExponentialDecay(1.0, 1, 1.0)


class CheckpointError(WorkloadError):
    """Training cannot resume from the run directory. No complete checkpoint in it was changed."""

    reason = "the run cannot resume from its checkpoints"


class CannotSaveError(CheckpointError):
    """No checkpoint can be saved, and training has not begun."""

    reason = "no checkpoint can be saved"


@dataclass(frozen=True)
class InMemoryCheckpoint:
    """A checkpoint in TensorFlow's in-memory file system, until it is discarded. `files` are the names and sizes of its files."""

    step: int
    directory: str
    files: Sequence[tuple[str, int]] = field(default=())

    @property
    def size(self) -> int:
        """Return its bytes."""
        return sum(size for _, size in self.files)

    def write(self, name: str, path: Path) -> Iterator[int]:
        """Write a file to `path`; see write_file."""
        return write_file(path, self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """Return the content of a file."""
        return read_file(f"{self.directory}/{name}")

    def discard(self) -> None:
        """Free the memory."""
        for name, _ in self.files:
            tf.io.gfile.remove(f"{self.directory}/{name}")


@dataclass(frozen=True)
class Restored:
    """A checkpoint that was loaded: its global step and path, and the state of callbacks in it."""

    step: int
    path: str
    callbacks: bytes = b""


def list_checkpoints(directory: Path) -> list[str]:
    """Return the paths of the complete checkpoints, in the order in which they were saved; changes nothing."""
    try:
        state = tf.train.get_checkpoint_state(str(directory))
    except ValueError:  # the file that names them is empty
        return []
    return list(state.all_model_checkpoint_paths) if state else []


def step_of(path: str) -> int:
    """Return the global step in a checkpoint's name."""
    return int(path.rpartition("-")[2])


class Checkpoints:
    """The checkpoints of one run, in `<run_dir>/checkpoints`."""

    def __init__(
        self, directory: Path, model: keras.Model, optimizer: keras.optimizers.Optimizer, keep: int, tables: TableParts | None = None
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._tables, self._row_files = tables, tables.row_files if tables else None
        self._step = tf.Variable(0, dtype=tf.int64)
        self._rate, self._constant_rate = schedules.described(optimizer), schedules.constant_rate(optimizer)
        # Keras leaves the state of random layers out of a model's checkpoint.
        self._tracked_objects = {"model": model, "optimizer": optimizer, "step": self._step, "seeds": seeds(model)}
        self._tracked_objects["global_seed"] = global_seed.states(model)
        self._tracked_objects |= tables.parts if tables else {}
        self._callbacks = tf.Variable(b"", dtype=tf.string)
        self._saved = tf.train.Checkpoint(**self._tracked_objects, learning_rate=tf.Variable(self._rate), callbacks=self._callbacks)
        self.directory, self._keep = directory, keep
        self._notices = [notice for notice in (_remove_incomplete(directory), _recover(directory)) if notice]
        self._paths = list_checkpoints(directory) or _on_disk(directory)
        self.written = 0  # bytes written so far, of all checkpoints: shows whether a save makes progress

    @property
    def latest(self) -> str | None:
        """Return the path of the newest checkpoint."""
        return self._paths[-1] if self._paths else None

    def restore(self, notice: Callable[[str], None]) -> Restored | None:
        """Load the newest checkpoint that can be read, or return None if there is none.

        `notice` is called for each that cannot be read, which is left in place, and if the learning rate differs from the one that the
        checkpoint's optimizer was built with: the new one applies.

        Raises:
            CheckpointError: a checkpoint fits another model, or none of them can be read; to continue would lose them.
        """
        for message in self._notices:
            notice(message)
        paths = list(reversed(self._paths))
        for path in paths:
            try:
                reader = tf.train.load_checkpoint(path)
                optimizer = self._optimizer_like_that_in(reader)
                self._load(path, reader, optimizer)
            except (CheckpointError, PeerLostError):
                raise
            except Exception as error:  # noqa: BLE001 - a damaged file may raise any error
                notice(_skipped_notice(path, error))
                continue
            if optimizer is not self._optimizer:
                _copy_all_but_rate(optimizer, self._optimizer)
            step = int(self._step.numpy())
            # A checkpoint of an earlier version has only the optimizer's own rate, which was never lowered then.
            has_rate = reader.has_tensor(_BUILT_WITH)
            saved_rate = reader.get_tensor(_BUILT_WITH).decode() if has_rate else schedules.described(self._optimizer)
            if saved_rate != self._rate:
                schedules.set_rate(self._optimizer, self._constant_rate)
                notice(f"learning rate {saved_rate} -> {self._rate} from step {step}")
            callbacks = reader.get_tensor(_CALLBACKS) if reader.has_tensor(_CALLBACKS) else b""
            return Restored(step, path, callbacks)
        if paths:
            raise CheckpointError(
                f"none of the {len(paths)} checkpoints can be read: {', '.join(paths)}; start afresh, or put a copy in their place"
            )
        return None

    def _load(self, path: str, reader: Any, optimizer: keras.optimizers.Optimizer) -> None:
        tracked = {**self._tracked_objects, "optimizer": optimizer}
        if not reader.has_tensor(_GLOBAL_SEED):  # a checkpoint of an earlier version
            del tracked["global_seed"]
        saved = tf.train.Checkpoint(**tracked)
        if self._row_files and (other := self._row_files.mismatch(path, saved)):
            raise self._other_model(path, ValueError(other))
        try:
            saved.restore(path).assert_existing_objects_matched().expect_partial()
        except (ValueError, AssertionError) as error:  # other shapes, or other variables
            by_rows = any(name.startswith("tables/") for name, _ in tf.train.list_variables(path))
            hint = _BY_ROWS_HINT if by_rows and not self._tables else _WHOLE_HINT if self._tables and not by_rows else ""
            raise self._other_model(path, error, hint) from error
        if self._row_files:
            self._row_files.restore(path, saved)

    def _optimizer_like_that_in(self, reader: Any) -> keras.optimizers.Optimizer:
        """Return this optimizer, or, if only one of it and the checkpoint's has a schedule, a copy with the checkpoint's kind of learning rate."""
        part = "inner_optimizer/" if schedules.inner(self._optimizer) is not self._optimizer else ""
        constant = reader.has_tensor(_VALUE.format(f"optimizer/{part}_learning_rate"))
        if constant == (self._constant_rate is not None):
            return self._optimizer
        own = schedules.inner(self._optimizer)
        try:
            other = copied(own, learning_rate=1.0 if constant else _ANY_SCHEDULE)
        except Exception as error:
            raise CheckpointError(
                f"the run was trained with {'a constant learning rate' if constant else 'a schedule'} before, and {type(own).__name__} cannot be "
                f"recreated with one to load its state ({error}); let its get_config return all that its constructor takes"
            ) from error
        other = keras.optimizers.LossScaleOptimizer(other) if part else other
        other.build(own._trainable_variables)  # noqa: SLF001 - without tables, which are updated by rows
        return other

    @staticmethod
    def _other_model(path: str, error: Exception, hint: str = "") -> CheckpointError:
        return CheckpointError(
            f"the checkpoint {path} is of another model or optimizer ({first_line(error)}); train under another name, or start afresh{hint}"
        )

    def free_space_notice(self) -> str:
        """Return a notice if the volume lacks the space for `keep` checkpoints of this size; nothing if it has it, or does not report it.

        Raises:
            CannotSaveError: there is no checkpoint yet, and not even one fits, or the volume is read-only.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise
            raise CannotSaveError(f"{self.directory} cannot be made: {error.strerror}; make room there, {_CHOOSE}") from error
        size = sum(v.value.shape.num_elements() * v.value.dtype.size for v in (*self._model.variables, *self._optimizer.variables))
        disk = os.statvfs(self.directory)
        if disk.f_flag & os.ST_RDONLY:
            if not self._paths:
                raise CannotSaveError(f"{self.directory} is read-only, and not one checkpoint can be saved; make it writable, {_CHOOSE}")
            return f"{self.directory} is read-only: no checkpoint can be saved until that changes"
        if not disk.f_blocks:
            return ""
        size += self._tables.bytes if self._tables else 0
        size += 2 * disk.f_frsize  # each of its two files may begin another block
        free = disk.f_bavail * disk.f_frsize
        taken = sum(file.stat().st_size for path in self._paths for file in _files_of(path))
        fitting = (free + taken) // max(1, size)
        space = f"{self.directory} has {byte_size(free)} free, and a checkpoint of this model takes {byte_size(size)}"
        if not fitting and not self._paths:
            raise CannotSaveError(f"{space}: not one can be saved; make room there, {_CHOOSE}")
        if fitting >= self._keep:
            return ""
        also = "" if fitting > 1 else "; an old checkpoint is deleted only after the next is written, so a second one cannot be saved"
        return f"{space}: there is room for {fitting} of the {self._keep} that train.checkpoint.keep asks for{also}"

    def capture(self, step: int, callbacks: bytes = b"") -> InMemoryCheckpoint:
        """Return the checkpoint of global step `step`: a copy of the current state, except for rows on parameter servers."""
        self._step.assign(step)
        self._callbacks.assign(callbacks)
        self._saved.save_counter.assign_add(1)  # as tf.train.CheckpointManager does; a part of each checkpoint
        directory, name = f"ram://checkpoints-{next(_captures)}", f"ckpt-{step}"
        if self._row_files:
            self._row_files.take_first_rows()  # this part holds only the first row of each table; `streamed` adds the rest
        self._saved.write(f"{directory}/{name}")
        names = sorted(n for n in tf.io.gfile.listdir(directory) if n.startswith(f"{name}."))  # the data before the index
        checkpoint = InMemoryCheckpoint(step, directory, [(n, tf.io.gfile.stat(f"{directory}/{n}").length) for n in names])
        return self._row_files.streamed(checkpoint, self._saved) if self._row_files else checkpoint

    def write(self, checkpoint: InMemoryCheckpoint) -> str:
        """Write a checkpoint to the disk, delete those beyond `keep`, and return its path.

        If the disk is full, others beyond `keep` - 1 are deleted, but never the last one; if any were, the write is repeated.

        Raises:
            OSError: the disk does not take it. Earlier checkpoints remain, except those that were deleted to make space. At most data
                files of this one remain, without an index; the next start removes them.
            PeerLostError: a parameter server that has rows of it is lost.
        """
        path = str(self.directory / f"ckpt-{checkpoint.step}")
        others = [other for other in self._paths if other != path and _files_of(other)]  # files may have been deleted to make space
        try:
            self._write(checkpoint)
        except OSError as error:
            if error.errno not in _NO_SPACE or len(others) < max(2, self._keep):
                raise
            others_count = max(1, self._keep - 1)
            removed, others = others[:-others_count], others[-others_count:]
            self._paths = others
            _delete(removed)
            self._write(checkpoint)
        retained = [*others, path][-self._keep :]
        try:
            _write_names(self.directory, retained)
        except Exception:
            if path not in self._paths:
                _delete([path])
            raise
        removed, self._paths = [other for other in others if other not in retained], retained
        _delete(removed)
        return path

    def _write(self, checkpoint: InMemoryCheckpoint) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        temporary_and_final = [(self.directory / f"{name}{_INCOMPLETE_SUFFIX}", self.directory / name) for name, _ in checkpoint.files]
        try:
            for temporary, final in temporary_and_final:
                for size in checkpoint.write(final.name, temporary):
                    self.written += size
            for temporary, final in temporary_and_final:  # the index last: with it the checkpoint is complete
                temporary.replace(final)
        except Exception:
            for temporary, _ in temporary_and_final:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
            raise

    def save(self, step: int, callbacks: bytes = b"") -> str:
        """Capture the state of global step `step` and write it to the disk; return the checkpoint's path."""
        checkpoint = self.capture(step, callbacks)
        try:
            return self.write(checkpoint)
        finally:
            checkpoint.discard()


def read_file(path: str) -> Iterator[bytes]:
    """Yield the content of a file of TensorFlow's file systems."""
    with tf.io.gfile.GFile(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def write_file(path: Path, chunks: Iterable[bytes]) -> Iterator[int]:
    """Write a file; yield the size of each piece once it is on the disk.

    Raises:
        OSError: the disk does not take it.
    """
    with path.open("wb", buffering=0) as file:
        unsynced = 0
        for chunk in itertools.chain(chunks, [b""]):
            remaining = memoryview(chunk)
            while remaining:
                remaining = remaining[os.write(file.fileno(), remaining) :]
            unsynced += len(chunk)
            if unsynced >= _FSYNC_EVERY or not chunk:
                os.fsync(file.fileno())  # some file systems report only now that there is no space
                yield unsynced
                unsynced = 0


def _files_of(path: str) -> list[Path]:
    """Return the files of a checkpoint, the index first: without it there is no checkpoint."""
    prefix = Path(path)
    return [*prefix.parent.glob(f"{prefix.name}.index"), *prefix.parent.glob(f"{prefix.name}.data-*")]


def _delete(paths: Sequence[str]) -> None:
    for path in paths:
        for file in _files_of(path):
            with suppress(OSError):
                file.unlink(missing_ok=True)


def _remove_incomplete(directory: Path) -> str:
    """Remove the files of saves that a kill or a full disk interrupted; return a notice of that, or nothing."""
    incomplete = {*directory.glob(f"ckpt-*{_INCOMPLETE_SUFFIX}*"), *directory.glob("ckpt-*_temp"), *directory.glob(".checkpoint.*")}
    # The data is written before the index, and deleted after it.
    incomplete |= {
        path
        for path in directory.glob("ckpt-*.data-*-of-*")
        if path.suffix != _INCOMPLETE_SUFFIX and not path.with_suffix(".index").exists()
    }
    if not incomplete:
        return ""
    size = sum(file.stat().st_size for path in incomplete for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())
    for path in incomplete:
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return f"{directory}: remains of checkpoints that were never complete are removed, {byte_size(size)}"


def _skipped_notice(path: str, error: Exception) -> str:
    return f"the checkpoint {path} cannot be read and is passed over: {first_line(error)}"


def _copy_all_but_rate(source: keras.optimizers.Optimizer, target: keras.optimizers.Optimizer) -> None:
    rates = [schedules.inner(optimizer)._learning_rate for optimizer in (source, target)]  # noqa: SLF001 - see schedules
    sources, targets = ([v for v in optimizer.variables if all(v is not rate for rate in rates)] for optimizer in (source, target))
    for source_variable, target_variable in zip(sources, targets, strict=True):
        target_variable.value.assign(source_variable.value)


def _recover(directory: Path) -> str:
    """Write the `checkpoint` file, which names the checkpoints, again if it is missing or damaged; return a notice of that, or nothing."""
    try:
        if tf.train.get_checkpoint_state(str(directory)):
            return ""
    except ValueError:  # it is empty
        pass
    paths = _on_disk(directory)
    with suppress(OSError):  # a volume that is full or read-only: the next save writes it
        if not paths:
            (directory / "checkpoint").unlink(missing_ok=True)
            return ""
        _write_names(directory, paths)
    return (
        f"{directory / 'checkpoint'} was missing or damaged; the {len(paths)} checkpoints beside it are taken by their steps"
        if paths
        else ""
    )


def _on_disk(directory: Path) -> list[str]:
    """Return the paths of all complete checkpoints in the order of their steps, whether the `checkpoint` file names them or not."""
    indices = sorted((step_of(path.stem), path) for path in directory.glob("ckpt-[0-9]*.index") if _INCOMPLETE_SUFFIX not in path.name)
    return [str(path.with_suffix("")) for _, path in indices]


def _write_names(directory: Path, paths: Sequence[str]) -> None:
    """Write the `checkpoint` file: a CheckpointState in protobuf's text format. TensorFlow's own manager ignores checkpoints without a time."""
    names = [json.dumps(Path(path).name) for path in paths]
    lines = [f"model_checkpoint_path: {names[-1]}"]
    lines += [f"all_model_checkpoint_paths: {name}" for name in names]
    lines += [f"all_model_checkpoint_timestamps: {_files_of(path)[0].stat().st_mtime}" for path in paths]
    write_atomically(directory / "checkpoint", "\n".join(lines) + "\n")
