"""Keras's global seed generator, which functions of keras.random use when called without a `seed`.

Keras keeps it outside of models, and one for each thread. Here a model holds it, so that it takes part in a run as the seeds of layers do.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR, global_seed_generator

_HELD = "_global_seed_generator"  # the attribute of a model


def attach(model: keras.Model, replicas: int) -> None:
    """Let a new model hold this thread's generator, which is created if there is none; several replicas need one that counts."""
    generator = global_seed_generator()
    if replicas > 1:
        generator = _Counting(int(generator.state.numpy()[0]))
    object.__setattr__(model, _HELD, generator)  # bypasses Keras, which would track it


def states(model: keras.Model) -> list[tf.Variable]:
    """Return the state of the generator that the model holds, none if it holds none."""
    generator = getattr(model, _HELD, None)
    return [] if generator is None else [generator.state.value]


def drawing_with(model: keras.Model) -> AbstractContextManager[None]:
    """Let functions of keras.random draw by the generator that the model holds, in this thread."""
    return _drawing_by(getattr(model, _HELD))


def drawing_on_worker(seed: tf.Tensor) -> AbstractContextManager[None]:
    """Let functions of keras.random draw by `seed`, int32 [2]: a worker of parameter servers does not have the generator's variable."""
    return _drawing_by(_Stateless(seed))


@contextmanager
def _drawing_by(generator: Any) -> Iterator[None]:
    before = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, generator)
    try:
        yield
    finally:
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, before)


class _Counting(keras.random.SeedGenerator):
    """Draws [seed, 0], [seed, 1], ..., as for layers. Each replica has its own seed; after a resume the sequence continues."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, name="global_seed_generator")

    def next(self, ordered: bool = True) -> Any:  # noqa: ARG002 - Keras's signature
        """See keras.random.SeedGenerator.next."""
        return super().next(ordered=True)


class _Stateless:
    """A generator without a variable, which counts the places of a graph that draw."""

    def __init__(self, seed: tf.Tensor) -> None:
        self._seed, self._places = seed, 0

    def next(self, ordered: bool = True) -> tf.Tensor:  # noqa: ARG002 - Keras's signature
        """See keras.random.SeedGenerator.next."""
        seed = self._seed + tf.constant([0, self._places], tf.int32)
        self._places += 1
        # It may be the body of a loop, each of whose iterations has to draw other numbers.
        if tf.compat.v1.get_default_graph() is not self._seed.graph:
            seed += tf.random.uniform([2], maxval=2**31 - 1, dtype=tf.int32)
        return seed
