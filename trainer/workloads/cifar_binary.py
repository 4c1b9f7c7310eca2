"""CIFAR-10's published binary files: records of one label byte and 3,072 bytes of pixels, nothing else.

A record's pixels are 1,024 of red, 1,024 of green, 1,024 of blue, each 32 rows of 32. Five files hold the training set,
one the test set. The files have no header: a wrong file is detected by its size, its labels, or a record count that differs from the other files'.
"""

from pathlib import Path

import numpy as np

from trainer.workloads.errors import COPY_AGAIN, check_directory, wrong_file

SIDE = 32
CHANNELS = 3
CLASSES = 10
RECORD = 1 + SIDE * SIDE * CHANNELS
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILES = ("test_batch.bin",)
UNPACKED = "cifar-10-batches-bin"

# Name of a file that is often there instead -> the remedy.
LOOKALIKES = {
    "data_batch_1": "These are the files of the Python version; take the binary version, cifar-10-binary.tar.gz.",
    "cifar-10-batches-py": "That is the Python version; take the binary version, cifar-10-binary.tar.gz.",
    "cifar-10-binary.tar.gz": "Unpack cifar-10-binary.tar.gz there: tar xzf cifar-10-binary.tar.gz.",
    "train.bin": "These are the files of CIFAR-100; take CIFAR-10's, cifar-10-binary.tar.gz.",
}


def read_files(directory: str, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return images uint8 [n, 32, 32, 3] and labels uint8 [n] of files in `directory` or its `cifar-10-batches-bin`.

    Raises DataError if the directory or a file is missing, or a file is invalid.
    """
    root = _root(Path(directory))
    parts = [read(root / name) for name in names]
    for name, (_, labels) in zip(names[1:], parts[1:], strict=True):
        if len(labels) != len(parts[0][1]):
            raise wrong_file(root / name, f"{len(labels)} records", f"{len(parts[0][1])}, as in {names[0]}", COPY_AGAIN)
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the images uint8 [n, 32, 32, 3] and labels uint8 [n] of one file.

    Raises DataError if it is missing or cannot be read, is empty, does not consist of whole records, or has a label above 9.
    """
    content = _content(path)
    count, rest = divmod(len(content), RECORD)
    if rest or count == 0:
        found = f"{len(content)} bytes" + (f", {count} records and {rest} bytes" if count else "")
        raise wrong_file(path, found, f"whole records of {RECORD} bytes, at least one", COPY_AGAIN)
    records = np.frombuffer(content, np.uint8).reshape(count, RECORD)
    labels = records[:, 0]
    if labels.max() >= CLASSES:
        at = int(np.argmax(labels >= CLASSES))
        raise wrong_file(path, f"label {labels[at]} in record {at}", f"labels from 0 to {CLASSES - 1}", COPY_AGAIN)
    by_channel = records[:, 1:].reshape(count, CHANNELS, SIDE, SIDE)
    return np.ascontiguousarray(by_channel.transpose(0, 2, 3, 1)), labels.copy()


def _root(directory: Path) -> Path:
    """Return the directory of the files: `directory`, or the one in it that the published archive unpacks to."""
    check_directory(directory, "CIFAR-10's binary files", "synthetic", "download")
    unpacked = directory / UNPACKED
    return unpacked if unpacked.is_dir() and not (directory / TRAIN_FILES[0]).is_file() else directory


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        names = sorted(entry.name for entry in path.parent.iterdir())
        found = f"no such file (the directory holds {', '.join(names[:8]) or 'nothing'})"
        remedy = next((advice for name, advice in LOOKALIKES.items() if name in names), "Copy CIFAR-10's six binary files there.")
        raise wrong_file(path, found, "it", remedy) from error
    except OSError as error:
        raise wrong_file(path, f"it cannot be read ({error.strerror})", "a readable file", "Check its owner and mode.") from error
