"""MNIST's published files: IDX, big-endian, optionally compressed with gzip.

An IDX file has two zero bytes, one byte of element type (0x08 is unsigned byte), one byte with the number of
dimensions, each dimension as a 4-byte unsigned integer, then the elements in row-major order. Type 0x08 with
three dimensions is the images' magic number 2051, with one the labels' 2049.
"""

import gzip
import zlib
from pathlib import Path

import numpy as np

from trainer.workloads.errors import COPY_AGAIN, check_directory, wrong_file

UNSIGNED_BYTE = 0x08
IMAGE_SHAPE = (28, 28)
CLASSES = 10
GZIP_MAGIC = b"\x1f\x8b"


def read_pair(directory: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images uint8 [n, 28, 28] and labels uint8 [n] of `split`, `train` or `t10k`, under their published names.

    Raises DataError if the directory or a file is missing, or a file is invalid.
    """
    images_path = _published(Path(directory), f"{split}-images-idx3-ubyte")
    labels_path = _published(Path(directory), f"{split}-labels-idx1-ubyte")
    images, labels = read(images_path, 3), read(labels_path, 1)
    if images.shape[1:] != IMAGE_SHAPE:
        raise wrong_file(images_path, f"images of {images.shape[1]}x{images.shape[2]} pixels", "28x28", COPY_AGAIN)
    if len(images) == 0:
        raise wrong_file(images_path, "no images", "at least one", COPY_AGAIN)
    if len(images) != len(labels):
        found, expected = f"{len(labels)} labels", f"{len(images)}, one for each image of {images_path.name}"
        raise wrong_file(labels_path, found, expected, "Both files must be of the same published set.")
    if labels.max() >= CLASSES:
        at = int(np.argmax(labels >= CLASSES))
        raise wrong_file(labels_path, f"label {labels[at]} at position {at}", f"labels from 0 to {CLASSES - 1}", COPY_AGAIN)
    return images, labels


def read(path: Path, dimensions: int) -> np.ndarray:
    """Read an IDX file of unsigned bytes with so many dimensions as an array.

    Raises DataError if the file cannot be read, has another format, or is shorter or longer than its header says.
    """
    content = _content(path)
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise wrong_file(path, f"{len(content)} bytes", f"a header of {start} bytes", COPY_AGAIN)
    if content[:2] != b"\0\0":
        raise wrong_file(path, f"first bytes {content[:4].hex(' ')}", f"00 00 08 {dimensions:02x}, an IDX file", COPY_AGAIN)
    if content[2] != UNSIGNED_BYTE:
        raise wrong_file(path, f"element type 0x{content[2]:02x}", "0x08, unsigned bytes", COPY_AGAIN)
    if content[3] != dimensions:
        raise wrong_file(path, f"{content[3]} dimensions", str(dimensions), "Images and labels may have been exchanged.")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, 4))
    expected = int(np.prod(shape, dtype=object))
    if len(content) - start != expected:
        found = f"{len(content) - start} bytes of elements"
        raise wrong_file(path, found, f"{expected}, as its header {'x'.join(map(str, shape))} says", COPY_AGAIN)
    return np.frombuffer(content, np.uint8, expected, start).reshape(shape)


def _published(directory: Path, name: str) -> Path:
    check_directory(directory, "MNIST's four IDX files", "synthetic", "download")
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    found = ", ".join(sorted(entry.name for entry in directory.iterdir())[:8]) or "nothing"
    raise wrong_file(
        directory / name, f"no such file, with or without .gz (the directory holds {found})", "it", "Copy MNIST's four files there."
    )


def _content(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        if path.suffix != ".gz":
            return raw
        if not raw.startswith(GZIP_MAGIC):
            raise wrong_file(path, f"first bytes {raw[:2].hex(' ')}", "1f 8b, gzip", "Drop .gz from its name if it is not compressed.")
        return gzip.decompress(raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise wrong_file(path, f"damaged gzip data ({error})", "a whole gzip file", COPY_AGAIN) from error
    except OSError as error:
        raise wrong_file(path, f"it cannot be read ({error.strerror})", "a readable file", "Check its owner and mode.") from error
