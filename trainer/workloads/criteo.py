"""Criteo's published click logs: a label, 13 numbers and 26 categories a line, separated by tabs, optionally compressed with gzip.

The label is 0 or 1; an empty number counts as 0, an empty category is a category like others. A directory holds `train*` or
`day_*` files. Held out are the `eval*` files; else, of several days alone, the last one, as in published comparisons; else each tenth line
of each file. The published `test.txt` has no labels and is not read.

Apart from the checks, all of it is TensorFlow operations: each training task reads, shards, shuffles and parses its own lines.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import tensorflow as tf

from trainer.workloads import in_memory, pipeline
from trainer.workloads.errors import COPY_AGAIN, DataError, check_directory, wrong_file
from trainer.workloads.idx import GZIP_MAGIC
from trainer.workloads.protocol import Shard

NUMBERS = 13
CATEGORIES = 26
FIELDS = 1 + NUMBERS + CATEGORIES

# Without held-out files, every so many lines one is held out.
HELD_OUT_EVERY = 10
# First lines of each file that are checked before training starts.
CHECKED_LINES = 100
# Files of at most so many bytes together are counted at each start, which takes a second or two.
MAX_COUNTED_BYTES = 2**28
# Lines in the shuffle buffer, and lines that are filtered in one call.
SHUFFLE_BUFFER = 10_000
BLOCK = 500
PREFETCHED_BATCHES = 2

_NUMBER = r"(-?[0-9]{1,18}(\.[0-9]*)?)?"
_EXPECTED = f"{FIELDS} fields separated by tabs: a label, {NUMBERS} numbers, {CATEGORIES} categories"
_REMEDY = "Correct that line or remove it."
_MAX_SHOWN = 80  # first bytes of a line to show in a message

Features = dict[str, tf.Tensor]


@dataclass(frozen=True)
class Files:
    """The files of a directory, in order; `held_out` is empty if each tenth line of `train` is held out."""

    train: tuple[Path, ...]
    held_out: tuple[Path, ...]

    def count_examples(self) -> int | None:
        """Return how many lines there are to train on; None if counting them would take long."""
        if sum(path.stat().st_size for path in self.train) > MAX_COUNTED_BYTES:
            return None
        files = [pipeline.untuned(tf.data.TextLineDataset(str(path), _compression(path))) for path in self.train]
        lines = [int(file.reduce(0, lambda n, _: n + 1)) for file in files]
        return sum(lines) if self.held_out else sum(n - n // HELD_OUT_EVERY for n in lines)


def find(directory: str) -> Files:
    """Return the files of `directory`, after a check of the first lines of each.

    Raises DataError if the directory is missing or has no such file, or if one of these lines is wrong.
    """
    files = _published(Path(directory))
    for path in (*files.train, *files.held_out):
        _check(path)
    return files


def batches(files: Files, rows: Sequence[int], shard: Shard) -> tf.data.Dataset:
    """Return endless (features, labels) batches of `shard.batch_size` lines, shuffled again each epoch.

    Features are `numbers` float32 [batch, 13] and `categories` int64 [batch, 26], each category hashed into its column's `rows`.
    `shard.index` and `shard.start` may be integer tensors. A reader takes every `shard.count`-th line. If it starts at a later
    batch, it skips the earlier lines, at most two epochs of them, without parsing them.
    """
    count, index, start = (tf.cast(value, tf.int64) for value in (shard.count, shard.index, shard.start))
    own = _lines(files.train, held_out=None if files.held_out else False).shard(count, index)
    seed = tf.constant(shard.seed, tf.int64) * 1_000_003 + index * 7_919
    consumed = start * shard.batch_size
    # The reader's lines in an epoch, counted only up to `consumed` + 1: with more, no epoch is skipped.
    own_count = pipeline.untuned(own.take(consumed + 1)).reduce(tf.constant(0, tf.int64), lambda lines, *_: lines + 1)
    enough = tf.debugging.assert_positive(
        own_count, f"{files.train[0].parent}: fewer lines than the {shard.count} tasks that read them; train with fewer tasks"
    )
    with tf.control_dependencies([enough] if enough is not None else []):
        own_count = tf.identity(own_count)
    epochs = tf.data.Dataset.range(consumed // own_count, in_memory.ENDLESS).flat_map(
        in_memory.do_not_convert(lambda epoch: pipeline.shuffled(own, SHUFFLE_BUFFER, seed, epoch))
    )
    lines = epochs.skip(consumed % own_count).batch(shard.batch_size, drop_remainder=True)
    return _parsed(lines, files.train, rows)


def once(files: Files, rows: Sequence[int], batch_size: int, examples: int) -> tf.data.Dataset:
    """Return the first `examples` held-out lines in order, as `batches`; the last batch may be smaller."""
    held_out = _lines(files.held_out) if files.held_out else _lines(files.train, held_out=True)
    return _parsed(held_out.take(examples).batch(batch_size), files.held_out or files.train, rows)


def hashed(categories: tf.Tensor, rows: Sequence[int]) -> tf.Tensor:
    """Return the row of each string [batch, 26] in its column's table, int64 [batch, 26]; the same on every machine.

    The hash includes the column's name: two categories that collide in one table do not collide in all.
    """
    columns = tf.constant([f"C{column + 1}=" for column in range(CATEGORIES)])
    # 62 bits, so that the remainder is nearly uniform for any number of rows.
    hashes = tf.strings.to_hash_bucket_fast(tf.add(columns, categories), 2**62)
    return cast("tf.Tensor", tf.math.floormod(hashes, tf.constant(list(rows), tf.int64)))


def _published(directory: Path) -> Files:
    """Return the files of a directory, divided into those to train on and those held out. Raises DataError if it is missing or has none."""
    check_directory(directory, "Criteo's files", "synthetic")
    names = sorted(entry.name for entry in directory.iterdir() if entry.is_file())
    trained = [name for name in names if re.fullmatch(r"train.*|day_\d+(\.gz)?", name)]
    if not trained:
        found = ", ".join(names[:8]) or "no file"
        raise wrong_file(
            directory, found, "train.txt or day_0, day_1, ..., with or without .gz", "Copy the published files there, under these names."
        )
    days = sorted((name for name in trained if name.startswith("day_")), key=lambda name: int(re.sub(r"\D", "", name)))
    others = [name for name in trained if name not in days]
    held_out = [name for name in names if name.startswith("eval")]
    if not held_out and len(days) > 1 and not others:
        held_out = [days.pop()]
    return Files(tuple(directory / name for name in (*others, *days)), tuple(directory / name for name in held_out))


def _check(path: Path) -> None:
    """Raise DataError if a file cannot be read, is empty, or one of its first lines is wrong."""
    try:
        with path.open("rb") as file:
            first = file.read(2)
    except OSError as error:
        raise wrong_file(path, f"it cannot be read ({error.strerror})", "a readable file", "Check its owner and mode.") from error
    if path.suffix == ".gz" and first != GZIP_MAGIC:
        raise wrong_file(path, f"first bytes {first.hex(' ')}", "1f 8b, gzip", "Drop .gz from its name if it is not compressed.")
    if path.suffix != ".gz" and first == GZIP_MAGIC:
        raise wrong_file(path, "first bytes 1f 8b, gzip", "text", "Add .gz to its name.")
    try:
        lines, numbers, _ = next(iter(_lines([path]).batch(CHECKED_LINES)), (None, None, None))
    except tf.errors.DataLossError as error:
        raise wrong_file(path, "damaged gzip data", "a whole gzip file", COPY_AGAIN) from error
    if lines is None:
        raise wrong_file(path, "no lines", "at least one", COPY_AGAIN)
    _, _, ok = _fields(lines)
    if not tf.reduce_all(ok):
        raise DataError(_error_message(lines, numbers, tf.zeros_like(numbers), tf.constant([str(path)])).numpy().decode(errors="replace"))


def _compression(path: Path) -> str:
    return "GZIP" if path.suffix == ".gz" else ""


def _lines(paths: Sequence[Path], *, held_out: bool | None = None) -> tf.data.Dataset:
    """Return each line, its number from 1 and its file's position in `paths`.

    With `held_out` only each tenth line of a file, or only the others.
    """
    files = tf.data.Dataset.from_tensor_slices(
        ([str(path) for path in paths], [_compression(path) for path in paths], tf.range(len(paths), dtype=tf.int64))
    )

    @in_memory.do_not_convert
    def of_file(name: tf.Tensor, compression: tf.Tensor, file: tf.Tensor) -> tf.data.Dataset:
        lines = tf.data.TextLineDataset(name, compression)
        numbers = tf.data.Dataset.range(1, in_memory.ENDLESS)
        return tf.data.Dataset.zip((lines, numbers, tf.data.Dataset.from_tensors(file).repeat()))

    numbered = files.flat_map(of_file)
    # In blocks: a call into a function costs more than a line.
    return numbered if held_out is None else numbered.batch(BLOCK).map(_picker(held_out=held_out)).unbatch()


# The next two functions are traced once in a process, not for each data set: a run creates three or more.
@functools.cache
def _picker(*, held_out: bool) -> Any:
    @tf.function(autograph=False)
    def picked(*block: tf.Tensor) -> tuple[tf.Tensor, ...]:
        tenth = block[1] % HELD_OUT_EVERY == 0
        return tuple(tf.boolean_mask(part, tenth if held_out else ~tenth) for part in block)

    return in_memory.do_not_convert(picked)


def _parsed(lines: tf.data.Dataset, paths: Sequence[Path], rows: Sequence[int]) -> tf.data.Dataset:
    names, parse = [str(path) for path in paths], _parser(tuple(rows))

    @in_memory.do_not_convert
    def named(*block: tf.Tensor) -> tuple[Features, tf.Tensor]:
        parsed: tuple[Features, tf.Tensor] = parse(*block, tf.constant(names))
        return parsed

    return lines.map(named, num_parallel_calls=PREFETCHED_BATCHES).prefetch(PREFETCHED_BATCHES).with_options(pipeline.thread_pool_options())


@functools.cache
def _parser(rows: tuple[int, ...]) -> Any:
    @tf.function(autograph=False)
    def parse(texts: tf.Tensor, numbers: tf.Tensor, files: tf.Tensor, names: tf.Tensor) -> tuple[Features, tf.Tensor]:
        values, _, ok = _fields(texts)
        wrong = tf.cond(tf.reduce_all(ok), lambda: tf.constant(""), lambda: _error_message(texts, numbers, files, names))
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(wrong, ""), [wrong])]):
            values = tf.identity(values)
        texts_of_numbers = values[:, 1 : 1 + NUMBERS]
        values_of_numbers = tf.strings.to_number(tf.where(tf.equal(texts_of_numbers, ""), "0", texts_of_numbers))
        features = {"numbers": values_of_numbers, "categories": hashed(values[:, 1 + NUMBERS :], rows)}
        return features, tf.cast(tf.equal(values[:, 0], "1"), tf.float32)

    return parse


def _fields(lines: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the fields of each line, strings [batch, 40], their number, and whether they are valid."""
    split = tf.strings.split(lines, "\t")
    counts = split.row_lengths()
    values = split.to_tensor(default_value="", shape=[None, FIELDS])
    numbers = tf.reduce_all(tf.strings.regex_full_match(values[:, 1 : 1 + NUMBERS], _NUMBER), 1)
    return values, counts, tf.equal(counts, FIELDS) & _is_label(values[:, 0]) & numbers


def _is_label(texts: tf.Tensor) -> tf.Tensor:
    return tf.equal(texts, "0") | tf.equal(texts, "1")


def _error_message(lines: tf.Tensor, numbers: tf.Tensor, files: tf.Tensor, names: tf.Tensor) -> tf.Tensor:
    """Return the message on the first wrong line of a batch: its file and number, what was found, what was expected, the remedy."""
    values, counts, ok = _fields(lines)
    at = tf.argmax(tf.cast(~ok, tf.int32))
    row, count = values[at], counts[at]
    column = tf.argmax(tf.cast(~tf.strings.regex_full_match(row[1 : 1 + NUMBERS], _NUMBER), tf.int32))
    location = tf.strings.join([tf.gather(names, files[at]), ", line ", tf.strings.as_string(numbers[at])])
    wrong_count = tf.strings.join([tf.strings.as_string(count), " fields in `", tf.strings.substr(lines[at], 0, _MAX_SHOWN), "`"])
    label = tf.strings.join(["label `", row[0], "`"])
    number = tf.strings.join(["`", row[1 + column], "` as number ", tf.strings.as_string(column + 1)])
    kinds: list[tuple[Any, tf.Tensor, str]] = [
        (tf.not_equal(count, FIELDS), wrong_count, _EXPECTED),
        (~_is_label(row[0]), label, "0 or 1"),
        (True, number, "digits, such as -2 or 17, or nothing"),
    ]
    found, expected = kinds[-1][1], tf.constant(kinds[-1][2])
    for applies, what, wanted in reversed(kinds[:-1]):
        found, expected = tf.where(applies, what, found), tf.where(applies, wanted, expected)
    return tf.strings.join([location, ": found ", found, "; expected ", expected, ". ", _REMEDY])
