"""The digits that mnist and mnist_mlp train on: synthetic, downloaded, or a directory of IDX files."""

from functools import cache

import keras

from trainer.workloads import digits, idx
from trainer.workloads.image_set import ImageSet, download, split

SIDE = 28
PIXELS = SIDE * SIDE
CLASSES = 10


@cache
def load(data: str) -> ImageSet:
    """Return the digits that `train.data` names: `synthetic`, `download`, or a directory with the four IDX files.

    Images are [examples, 784], row by row; 0 is background. The same object is returned each time; it does not depend on
    the run's seed, so runs can be compared. Raises DataError if files are missing or wrong, or the download fails.
    """
    if data == "synthetic":
        return ImageSet(lambda: split(*digits.draw(20_000, seed=1), (PIXELS,)), lambda: split(*digits.draw(5_000, seed=2), (PIXELS,)))
    if data == "download":
        train, test = download("MNIST", keras.datasets.mnist.load_data, "IDX")
    else:
        train, test = idx.read_pair(data, "train"), idx.read_pair(data, "t10k")
    training, held_out = split(*train, (PIXELS,)), split(*test, (PIXELS,))
    return ImageSet(lambda: training, lambda: held_out)
