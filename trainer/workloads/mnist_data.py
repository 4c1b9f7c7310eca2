"""The digits that mnist and mnist_mlp train on: synthetic, downloaded, or a directory of IDX files."""

from dataclasses import dataclass
from functools import cache

import keras
import numpy as np

from trainer.workloads import digits, idx
from trainer.workloads.errors import DataError

SIDE = 28
PIXELS = SIDE * SIDE
CLASSES = 10


@dataclass(frozen=True)
class Split:
    """Digits and their labels: `images` uint8 [examples, 784] row by row, 0 is background; `labels` int32 [examples]."""

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Digits:
    """A training set and a held-out test set."""

    train: Split
    test: Split


@cache
def load(data: str) -> Digits:
    """Return the digits that `train.data` names: `synthetic`, `download`, or a directory with the four IDX files.

    The same object is returned each time; it does not depend on the run's seed, so runs can be compared.
    Raises DataError if files are missing or wrong, or the download fails.
    """
    if data == "synthetic":
        return Digits(train=_split(*digits.draw(20_000, seed=1)), test=_split(*digits.draw(5_000, seed=2)))
    if data == "download":
        return _download()
    return Digits(train=_split(*idx.read_pair(data, "train")), test=_split(*idx.read_pair(data, "t10k")))


def _split(images: np.ndarray, labels: np.ndarray) -> Split:
    return Split(np.ascontiguousarray(images.reshape(-1, PIXELS)), labels.astype(np.int32))


def _download() -> Digits:
    try:
        train, test = keras.datasets.mnist.load_data()
    except Exception as error:
        message = (
            f"train.data download: MNIST could not be fetched ({type(error).__name__}: {error}). "
            "Where there is no network, set train.data to `synthetic` or to a directory with the IDX files."
        )
        raise DataError(message) from error
    return Digits(train=_split(*train), test=_split(*test))
