"""Labelled images in memory, a training set and a held-out set, and the download of published ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.workloads.errors import DataError


@dataclass(frozen=True)
class Split:
    """Images and their labels: `images` uint8 [examples, ...], of the data set's shape; `labels` int32 [examples]."""

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class ImageSet:
    """A training set and a held-out test set."""

    train: Split
    test: Split


def split(images: np.ndarray, labels: np.ndarray, shape: tuple[int, ...]) -> Split:
    """Return a split of `images`, each reshaped to `shape`, and their `labels`."""
    return Split(np.ascontiguousarray(images.reshape(-1, *shape)), labels.reshape(-1).astype(np.int32))


def download(name: str, load_data: Callable[[], Any], files: str) -> Any:
    """Return ((images, labels), (images, labels)), training and test, from Keras's `load_data`.

    `name` is the data set's and `files` the kind of its published files. Raises DataError if the download fails.
    """
    try:
        return load_data()
    except Exception as error:
        message = (
            f"train.data download: {name} could not be fetched ({type(error).__name__}: {error}). "
            f"Without a network, set train.data to `synthetic` or to a directory with the {files} files."
        )
        raise DataError(message) from error
