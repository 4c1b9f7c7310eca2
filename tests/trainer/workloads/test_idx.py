"""MNIST's file format: read back as written, and every way in which a file can be wrong is named."""

import gzip
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trainer.workloads import idx, mnist_data
from trainer.workloads.errors import DataError

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def encoded(array: np.ndarray, kind: int = 8) -> bytes:
    """Return an array of bytes in IDX format."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random images and labels."""
    rng = np.random.default_rng(count)
    return rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), (np.arange(count) % 10).astype(np.uint8)


def write_pair(directory: Path, images: bytes, labels: bytes) -> None:
    """Write a training pair under its published names."""
    (directory / IMAGES).write_bytes(images)
    (directory / LABELS).write_bytes(labels)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_published_set_is_read_as_it_was_written(tmp_path: Path, suffix: str) -> None:
    written = {}
    for split, count in (("train", 30), ("t10k", 20)):
        written[split] = images, labels = digits(count)
        for name, array in ((f"{split}-images-idx3-ubyte", images), (f"{split}-labels-idx1-ubyte", labels)):
            content = encoded(array)
            (tmp_path / (name + suffix)).write_bytes(gzip.compress(content) if suffix else content)
    read = mnist_data.load(str(tmp_path))
    for split, part in (("train", read.train), ("t10k", read.test)):
        np.testing.assert_array_equal(part.images, written[split][0].reshape(-1, 784))
        np.testing.assert_array_equal(part.labels, written[split][1])
        assert (part.images.dtype.name, part.labels.dtype.name) == ("uint8", "int32")


GOOD_IMAGES, GOOD_LABELS = (encoded(array) for array in digits(12))

WRONG: dict[str, tuple[bytes, bytes, str]] = {
    "empty file": (b"", GOOD_LABELS, rf"{IMAGES}: found 0 bytes; expected a header of 16 bytes"),
    "no IDX file": (b"\x89PNG" + GOOD_IMAGES[4:], GOOD_LABELS, rf"{IMAGES}: found first bytes 89 50 4e 47; expected 00 00 08 03"),
    "other element type": (encoded(digits(12)[0], 0x0D), GOOD_LABELS, rf"{IMAGES}: found element type 0x0d; expected 0x08"),
    "labels for images": (GOOD_LABELS + bytes(9), GOOD_LABELS, rf"{IMAGES}: found 1 dimensions; expected 3.*exchanged"),
    "truncated": (GOOD_IMAGES[:-1], GOOD_LABELS, rf"{IMAGES}: found 9407 bytes of elements; expected 9408, as its header 12x28x28 says"),
    "too long": (GOOD_IMAGES, GOOD_LABELS + b"\0", rf"{LABELS}: found 13 bytes of elements; expected 12"),
    "huge header": (
        GOOD_IMAGES[:4] + b"\xff" * 12 + bytes(9),
        GOOD_LABELS,
        rf"{IMAGES}: found 9 bytes of elements; expected {0xFFFFFFFF**3}",
    ),
    "other size": (encoded(np.zeros((12, 32, 32))), GOOD_LABELS, rf"{IMAGES}: found images of 32x32 pixels; expected 28x28"),
    "no images": (encoded(np.zeros((0, 28, 28))), encoded(np.zeros(0)), rf"{IMAGES}: found no images"),
    "other count": (GOOD_IMAGES, encoded(np.zeros(11)), rf"{LABELS}: found 11 labels; expected 12, one for each image of {IMAGES}"),
    "label too large": (
        GOOD_IMAGES,
        encoded(np.array([1] * 7 + [10] + [1] * 4)),
        rf"{LABELS}: found label 10 at position 7; expected.* 0 to 9",
    ),
}


@pytest.mark.parametrize("images,labels,message", WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_named_with_what_was_found_and_expected(tmp_path: Path, images: bytes, labels: bytes, message: str) -> None:
    write_pair(tmp_path, images, labels)
    with pytest.raises(DataError, match=re.escape(str(tmp_path)) + "/" + message):
        idx.read_pair(str(tmp_path), "train")


def no_gzip(path: Path) -> None:
    path.write_bytes(GOOD_IMAGES)


def cut_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(GOOD_IMAGES)[:-20])


def flipped_gzip(path: Path) -> None:
    content = bytearray(gzip.compress(GOOD_IMAGES))
    content[-5] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(
    "write,message",
    [
        (no_gzip, "found first bytes 00 00; expected 1f 8b, gzip"),
        (cut_gzip, "found damaged gzip data"),
        (flipped_gzip, "found damaged gzip data"),
    ],
)
def test_a_wrong_gzip_file_is_named(tmp_path: Path, write: Callable[[Path], None], message: str) -> None:
    write(tmp_path / f"{IMAGES}.gz")
    (tmp_path / LABELS).write_bytes(GOOD_LABELS)
    with pytest.raises(DataError, match=rf"{IMAGES}\.gz: {message}"):
        idx.read_pair(str(tmp_path), "train")


def test_the_error_of_a_missing_directory_lists_the_values_of_data() -> None:
    with pytest.raises(DataError, match=r"train\.data /no/such/place: no such directory.*`synthetic`, `download`, or a directory"):
        mnist_data.load("/no/such/place")


def test_a_missing_file_is_named_beside_the_existing_files(tmp_path: Path) -> None:
    (tmp_path / IMAGES).write_bytes(GOOD_IMAGES)
    with pytest.raises(DataError, match=rf"{LABELS}: found no such file, with or without \.gz \(the directory holds {IMAGES}\)"):
        idx.read_pair(str(tmp_path), "train")


@pytest.mark.usefixtures("without_dac_override")
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    write_pair(tmp_path, GOOD_IMAGES, GOOD_LABELS)
    (tmp_path / IMAGES).chmod(0)
    with pytest.raises(DataError, match=rf"{IMAGES}: found it cannot be read \(Permission denied\)"):
        idx.read_pair(str(tmp_path), "train")
