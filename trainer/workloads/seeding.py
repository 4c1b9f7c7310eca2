"""Seeds the user's data functions identically in each call, task and attempt, so that `train_data` and `eval_data` can split one set."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import keras
import numpy as np
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
from tensorflow.python.eager.context import context


class _Counter:
    """Numbers TensorFlow's random operations from 0, as a graph does: eager ones then draw what those in a graph of parameter_server draw."""

    def __init__(self) -> None:
        self._next = count()

    def randint(self, _low: int, _high: int) -> int:
        """See random.Random.randint."""
        return next(self._next)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python, NumPy, Keras and TensorFlow inside the block; restore their states afterwards."""
    tensorflow = context()
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - the state that users draw from
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    operations = vars(tensorflow).get("_rng"), tensorflow._seed  # noqa: SLF001 - TensorFlow has no public way to save them
    keras.utils.set_random_seed(seed)
    tensorflow._rng = _Counter()  # noqa: SLF001
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, generator)
        tensorflow._rng, tensorflow._seed = operations  # noqa: SLF001
