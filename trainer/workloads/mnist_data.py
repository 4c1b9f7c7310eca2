"""The digits that mnist and mnist_mlp train on: synthetic, downloaded, or a directory of IDX files."""

from functools import cache

import keras

from trainer.workloads import digits, idx
from trainer.workloads.image_set import ImageSet, download, split

SIDE, _ = idx.IMAGE_SHAPE
PIXELS = SIDE * SIDE
CLASSES = idx.CLASSES


@cache
def load(data: str) -> ImageSet:
    """Return the digits that `train.data` names: `synthetic`, `download`, or a directory with the four IDX files.

    Images are [examples, 784], row by row; 0 is background. The same object is returned each time; it does not depend on
    the run's seed, so runs can be compared. Raises DataError if files are missing or wrong, or the download fails.
    """
    if data == "synthetic":
        train, test = digits.draw(20_000, seed=1), digits.draw(5_000, seed=2)
    elif data == "download":
        train, test = download("MNIST", keras.datasets.mnist.load_data, "IDX")
    else:
        train, test = idx.read_pair(data, "train"), idx.read_pair(data, "t10k")
    return ImageSet(split(*train, (PIXELS,)), split(*test, (PIXELS,)))
