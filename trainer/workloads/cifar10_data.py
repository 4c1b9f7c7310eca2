"""The pictures that cifar10 trains on: synthetic, downloaded, or a directory of CIFAR-10's binary files."""

from dataclasses import dataclass
from functools import cache

import keras
import numpy as np

from trainer.workloads import cifar_binary, patterns
from trainer.workloads.errors import DataError

SIDE = cifar_binary.SIDE
CHANNELS = cifar_binary.CHANNELS
CLASSES = cifar_binary.CLASSES


@dataclass(frozen=True)
class Split:
    """Pictures and their labels: `images` uint8 [examples, 32, 32, 3]; `labels` int32 [examples]."""

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Pictures:
    """A training set and a held-out test set."""

    train: Split
    test: Split


@cache
def load(data: str) -> Pictures:
    """Return the pictures that `train.data` names: `synthetic`, `download`, or a directory with the six binary files.

    The same object is returned each time; it does not depend on the run's seed, so runs can be compared.
    Raises DataError if files are missing or wrong, or the download fails.
    """
    if data == "synthetic":
        return Pictures(train=_split(*patterns.draw(10_000, seed=1)), test=_split(*patterns.draw(2_000, seed=2)))
    if data == "download":
        return _download()
    train, test = (cifar_binary.read_files(data, names) for names in (cifar_binary.TRAIN_FILES, cifar_binary.TEST_FILES))
    return Pictures(train=_split(*train), test=_split(*test))


def _split(images: np.ndarray, labels: np.ndarray) -> Split:
    return Split(np.ascontiguousarray(images), labels.reshape(-1).astype(np.int32))


def _download() -> Pictures:
    try:
        train, test = keras.datasets.cifar10.load_data()
    except Exception as error:
        message = (
            f"train.data download: CIFAR-10 could not be fetched ({type(error).__name__}: {error}). "
            "Where there is no network, set train.data to `synthetic` or to a directory with the binary files."
        )
        raise DataError(message) from error
    return Pictures(train=_split(*train), test=_split(*test))
