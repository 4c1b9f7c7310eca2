"""The images that cifar10 trains on: synthetic, downloaded, or a directory of CIFAR-10's binary files."""

from functools import cache

import keras

from trainer.workloads import cifar_binary, patterns
from trainer.workloads.image_set import ImageSet, download, split

SIDE = cifar_binary.SIDE
CHANNELS = cifar_binary.CHANNELS
CLASSES = cifar_binary.CLASSES
_SHAPE = (SIDE, SIDE, CHANNELS)


@cache
def load(data: str) -> ImageSet:
    """Return the images that `train.data` names: `synthetic`, `download`, or a directory with the six binary files.

    Images are [examples, 32, 32, 3]. The same object is returned each time; it does not depend on the run's seed, so runs
    can be compared. Raises DataError if files are missing or wrong, or the download fails.
    """
    if data == "synthetic":
        train, test = patterns.draw(10_000, seed=1), patterns.draw(2_000, seed=2)
    elif data == "download":
        train, test = download("CIFAR-10", keras.datasets.cifar10.load_data, "binary")
    else:
        train, test = (cifar_binary.read_files(data, names) for names in (cifar_binary.TRAIN_FILES, cifar_binary.TEST_FILES))
    return ImageSet(split(*train, _SHAPE), split(*test, _SHAPE))
