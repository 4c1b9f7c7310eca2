"""CIFAR-10's file format: read back as written, and every way in which a file can be wrong is named."""

import re
from pathlib import Path

import numpy as np
import pytest

from trainer.workloads import cifar10_data, cifar_binary
from trainer.workloads.errors import DataError

FIRST, LAST, TEST = "data_batch_1.bin", "data_batch_5.bin", "test_batch.bin"


def pictures(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return random images and labels."""
    rng = np.random.default_rng([seed, count])
    return rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, count, dtype=np.uint8)


def encoded(images: np.ndarray, labels: np.ndarray) -> bytes:
    """Return images and labels in the published format: label, then red, green and blue."""
    records = [
        bytes([label]) + b"".join(image[:, :, channel].tobytes() for channel in range(3))
        for image, label in zip(images, labels, strict=True)
    ]
    return b"".join(records)


GOOD = encoded(*pictures(4))


def write_set(directory: Path, **changed: bytes | None) -> None:
    """Write a whole set of 4 records a file; `first`, `last` and `test` replace a file's content, None leaves the file out."""
    directory.mkdir(parents=True, exist_ok=True)
    contents: dict[str, bytes | None] = dict.fromkeys((*cifar_binary.TRAIN_FILES, TEST), GOOD)
    contents |= {{"first": FIRST, "last": LAST, "test": TEST}[name]: content for name, content in changed.items()}
    for name, content in contents.items():
        if content is not None:
            (directory / name).write_bytes(content)


@pytest.mark.parametrize("below", ["", "cifar-10-batches-bin"])
def test_a_published_set_is_read_as_it_was_written(tmp_path: Path, below: str) -> None:
    root = tmp_path / below
    root.mkdir(exist_ok=True)
    written = {name: pictures(6, seed) for seed, name in enumerate((*cifar_binary.TRAIN_FILES, TEST))}
    for name, (images, labels) in written.items():
        (root / name).write_bytes(encoded(images, labels))
    read = cifar10_data.load(str(tmp_path))
    for part, names in ((read.train, cifar_binary.TRAIN_FILES), (read.test, (TEST,))):
        np.testing.assert_array_equal(part.images, np.concatenate([written[name][0] for name in names]))
        np.testing.assert_array_equal(part.labels, np.concatenate([written[name][1] for name in names]))
        assert (part.images.dtype.name, part.labels.dtype.name) == ("uint8", "int32")


WRONG: dict[str, tuple[str, bytes, str]] = {
    "empty": ("first", b"", rf"{FIRST}: found 0 bytes; expected whole records of 3073 bytes, at least one"),
    "truncated": ("last", GOOD[:-1], rf"{LAST}: found 12291 bytes, 3 records and 3072 bytes; expected whole records"),
    "truncated at a record": ("last", GOOD[:-3073], rf"{LAST}: found 3 records; expected 4, as in {FIRST}"),
    "too long": ("test", GOOD + b"\0", rf"{TEST}: found 12293 bytes, 4 records and 1 bytes"),
    "other format": ("test", b"\x89PNG" * 3073, rf"{TEST}: found label 137 in record 0; expected labels from 0 to 9"),
    "label too large": ("first", GOOD[: 2 * 3073] + b"\x0a" + GOOD[2 * 3073 + 1 :], rf"{FIRST}: found label 10 in record 2"),
}


@pytest.mark.parametrize("name,content,message", WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_named_with_what_was_found_and_expected(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    write_set(tmp_path, **{name: content})
    with pytest.raises(DataError, match=re.escape(str(tmp_path)) + "/" + message):
        cifar10_data.load(str(tmp_path))


def test_the_error_of_a_missing_directory_lists_the_values_of_data() -> None:
    with pytest.raises(DataError, match=r"train\.data /no/such/place: no such directory.*`synthetic`, `download`, or a directory"):
        cifar10_data.load("/no/such/place")


@pytest.mark.parametrize("name", ["last", "test"])
def test_a_missing_file_is_named_beside_the_existing_files(tmp_path: Path, name: str) -> None:
    write_set(tmp_path, **{name: None})
    missing = {"last": LAST, "test": TEST}[name]
    with pytest.raises(DataError, match=rf"{missing}: found no such file \(the directory holds data_batch_1\.bin, .*Copy CIFAR-10's six"):
        cifar10_data.load(str(tmp_path))


@pytest.mark.parametrize(
    "file,advice",
    [
        ("data_batch_1", "take the binary version"),
        ("cifar-10-batches-py", "take the binary version"),
        ("cifar-10-binary.tar.gz", r"tar xzf cifar-10-binary\.tar\.gz"),
        ("train.bin", "files of CIFAR-100"),
    ],
)
def test_files_of_other_formats_are_recognised(tmp_path: Path, file: str, advice: str) -> None:
    (tmp_path / file).touch()
    with pytest.raises(DataError, match=advice):
        cifar10_data.load(str(tmp_path))


@pytest.mark.usefixtures("without_dac_override")
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    write_set(tmp_path)
    (tmp_path / TEST).chmod(0)
    with pytest.raises(DataError, match=rf"{TEST}: found it cannot be read \(Permission denied\)"):
        cifar10_data.load(str(tmp_path))
