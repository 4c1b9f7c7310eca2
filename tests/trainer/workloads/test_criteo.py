"""criteo: the published format is read, divided among readers and hashed; a wrong line is named by its file and number."""

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.workloads.click_logs import line, write
from trainer.error_line import error_line
from trainer.workloads import criteo
from trainer.workloads.errors import DataError
from trainer.workloads.protocol import Shard

ROWS = (100,) * criteo.CATEGORIES


def numbers(batches: Sequence[Any]) -> list[int]:
    """Return the numbers of the lines, which `line` writes as their first feature."""
    return [int(value) for features, _ in batches for value in features["numbers"].numpy()[:, 0]]


def read_numbers(files: criteo.Files, batches: int, **shard: int) -> list[int]:
    return numbers(list(criteo.batches(files, ROWS, Shard(10, **{"seed": 3, **shard})).take(batches)))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> criteo.Files:
    directory = tmp_path_factory.mktemp("criteo")
    write(directory / "train.txt", range(300))
    return criteo.find(str(directory))


Read = Callable[..., list[int]]


@pytest.fixture(scope="module")
def read_in_graph(files: criteo.Files) -> Read:
    """Return `read_numbers` of `files`, whose pipeline is traced once for each number of readers."""

    @tf.function(autograph=False)
    def data(index: tf.Tensor, start: tf.Tensor, count: int) -> tf.data.Dataset:
        return criteo.batches(files, ROWS, Shard(10, seed=3, index=index, count=count, start=start))

    def read(batches: int, index: int, count: int, start: int = 0) -> list[int]:
        dataset = data(tf.constant(index, tf.int64), tf.constant(start, tf.int64), count)
        return numbers(list(dataset.take(batches)))

    return read


@pytest.fixture(scope="module")
def straight(read_in_graph: Read) -> list[int]:
    """Return the numbers that the second of two readers takes in more than three epochs."""
    return read_in_graph(43, index=1, count=2)


def test_a_line_becomes_numbers_and_rows(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("1\t-2\t\t17.5" + "\t0" * 10 + "\t68fd1e64\t" + "\t80e26c9b" * 24 + "\n")
    (tmp_path / "eval.txt").write_text(line(0))
    log_files = criteo.find(str(tmp_path))
    ((features, labels),) = criteo.batches(log_files, ROWS, Shard(1, seed=0)).take(1)
    np.testing.assert_array_equal(features["numbers"], [[-2, 0, 17.5, *[0] * 10]])
    assert features["categories"].dtype == tf.int64
    assert labels.numpy().tolist() == [1]


def test_categories_are_hashed_by_column_into_its_rows() -> None:
    rows = tuple(range(1000, 1000 + criteo.CATEGORIES))
    texts = tf.constant([[f"{value:08x}"] * criteo.CATEGORIES for value in range(500)] + [[""] * criteo.CATEGORIES])
    ids = criteo.hashed(texts, rows).numpy()
    assert (ids >= 0).all()
    assert (ids < rows).all()
    assert len(np.unique(ids[:, 0])) > 350  # as many as chance leaves of 500
    assert not any((ids[:, 0] == ids[:, column]).all() for column in range(1, criteo.CATEGORIES))
    # The same on every machine and in every version: a trained table depends on it.
    assert criteo.hashed(texts[:1], (10**6,) * criteo.CATEGORIES)[0, :3].numpy().tolist() == FIXED


FIXED = [769854, 257646, 55571]


@pytest.mark.parametrize("readers", [1, 2, 3])
def test_readers_together_see_each_line_once_an_epoch_and_no_held_out_one(read_in_graph: Read, readers: int) -> None:
    epoch = 270 // readers // 10
    seen = [value for index in range(readers) for value in read_in_graph(epoch, index=index, count=readers)]
    expected = [number for number in range(300) if number % 10 != 9]
    assert sorted(seen) == expected[: len(seen)] if readers == 1 else set(seen) <= set(expected)
    assert len(set(seen)) == len(seen) == epoch * 10 * readers


def test_each_tenth_line_is_held_out(files: criteo.Files) -> None:
    held_out = numbers(list(criteo.once(files, ROWS, 7, 1000)))
    assert held_out == list(range(9, 300, 10))
    assert numbers(list(criteo.once(files, ROWS, 7, 12))) == held_out[:12]


@pytest.mark.parametrize("start", [1, 12, 13, 14, 27, 40])
def test_a_resumed_reader_continues_exactly_also_in_a_graph_for_workers_without_python(
    read_in_graph: Read, straight: list[int], start: int
) -> None:
    """An epoch has 13.5 batches: the starts are within the first epoch, at its end and beyond it."""
    assert read_in_graph(3, index=1, count=2, start=start) == straight[start * 10 : start * 10 + 30]


def test_a_reader_outside_of_a_graph_reads_the_same(files: criteo.Files, straight: list[int]) -> None:
    assert read_numbers(files, 3, index=1, count=2, start=14) == straight[140:170]


def test_epochs_and_seeds_have_orders_of_their_own(files: criteo.Files) -> None:
    both = read_numbers(files, 54)
    assert sorted(both[:270]) == sorted(both[270:])
    assert both[:270] != both[270:]
    assert read_numbers(files, 5, seed=4) != both[:50]


def test_gzip_gives_the_same_as_plain_text(files: criteo.Files, straight: list[int], tmp_path: Path) -> None:
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(files.train[0].read_bytes()))
    packed = criteo.find(str(tmp_path))
    assert packed.count_examples() == files.count_examples() == 270
    assert read_numbers(packed, 43, index=1, count=2) == straight


def test_the_last_of_several_days_is_held_out(tmp_path: Path) -> None:
    for day in (0, 2, 10):
        write(tmp_path / f"day_{day}.gz", range(day * 100, day * 100 + 20))
    log_files = criteo.find(str(tmp_path))
    assert ([path.name for path in log_files.train], [path.name for path in log_files.held_out]) == (
        ["day_0.gz", "day_2.gz"],
        ["day_10.gz"],
    )
    assert log_files.count_examples() == 40
    assert sorted(read_numbers(log_files, 4)) == [*range(20), *range(200, 220)]
    assert numbers(list(criteo.once(log_files, ROWS, 100, 1000))) == list(range(1000, 1020))


def test_other_files_are_not_read(tmp_path: Path) -> None:
    for name in ("train.txt", "eval.txt", "test.txt", "readme.txt"):
        write(tmp_path / name, range(20))
    log_files = criteo.find(str(tmp_path))
    assert ([path.name for path in log_files.train], [path.name for path in log_files.held_out]) == (["train.txt"], ["eval.txt"])
    assert log_files.count_examples() == 20


def test_large_files_are_not_counted(files: criteo.Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criteo, "MAX_COUNTED_BYTES", 1000)
    assert files.count_examples() is None


WRONG = [
    ("1\t2", r"found 2 fields in `1\t2`; expected 40 fields separated by tabs: a label, 13 numbers, 26 categories"),
    (line(3).partition("\t")[2], "found 39 fields in `3\t"),
    ("", "found 1 fields in ``; expected 40"),
    ("2" + line(3)[1:], "found label `2`; expected 0 or 1"),
    (line(3).replace("\t3\t", "\tx3\t", 1), "found `x3` as number 1; expected digits, such as -2 or 17, or nothing"),
    (line(3).replace("\t3\t", "\tnan\t", 1), "found `nan` as number 1"),
]


@pytest.mark.parametrize("wrong, message, at", [*((*wrong, 3) for wrong in WRONG), *((*wrong, 250) for wrong in WRONG[::3])])
def test_a_wrong_line_is_named(tmp_path: Path, wrong: str, message: str, at: int) -> None:
    """One of the first lines is refused before training starts, with exit code 2; a later one when it is read."""
    lines = [line(number) for number in range(300)]
    lines[at] = wrong
    path = tmp_path / "train.txt"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError if at < criteo.CHECKED_LINES else tf.errors.InvalidArgumentError) as raised:
        read_numbers(criteo.find(str(tmp_path)), 30)
    error = str(raised.value) if at < criteo.CHECKED_LINES else error_line(raised.value).replace("\\t", "\t")
    assert f"{path}, line {at + 1}: " in error
    assert message.replace("\\t", "\t") in error
    assert "Correct that line or remove it." in error


def test_a_wrong_line_is_found_in_each_file(tmp_path: Path) -> None:
    write(tmp_path / "day_0", range(10))
    (tmp_path / "day_1").write_text("no log\n")
    with pytest.raises(DataError, match="day_1, line 1: found 1 fields in `no log`"):
        criteo.find(str(tmp_path))


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("readme.txt", b"", r"found readme\.txt; expected train\.txt or day_0, day_1, \.\.\., with or without \.gz"),
        ("train.txt", b"", "found no lines; expected at least one"),
        ("train.gz", b"1\t2", "found first bytes 31 09; expected 1f 8b, gzip"),
        ("train.txt", gzip.compress(b"1", mtime=0), "found first bytes 1f 8b, gzip; expected text. Add .gz"),
        ("train.txt.gz", gzip.compress(b"", mtime=0)[:10] + b"\xff" * 100, "found damaged gzip data; expected a whole gzip file"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        criteo.find(str(tmp_path))


def test_a_directory_and_its_files_must_exist(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"train\.data {tmp_path}/no: no such directory on this machine\. Expected `synthetic`, or"):
        criteo.find(f"{tmp_path}/no")
    with pytest.raises(DataError, match=f"{tmp_path}: found no file; expected train.txt"):
        criteo.find(str(tmp_path))
