"""`class_weight` of a user's module, as in Keras's `fit`: a weight for the training examples of each class."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.workloads.errors import WorkloadError
from trainer.workloads.seeding import seeded
from trainer.workloads.user_call import CallArguments, call

_MATRIX = 2


class ClassWeight:
    """Weights an example by its target, an integer or a one-hot row; a class that is not named has weight 1."""

    def __init__(self, source: Any, arguments: CallArguments) -> None:
        """Take a dict of weights by class, or a function that returns one. Raises WorkloadError if it is neither."""
        self._name = f"class_weight of {arguments.workload}"
        with seeded(arguments.seed):  # it may look at the same split as the data functions
            value = call(source, arguments) if callable(source) else source
        if not isinstance(value, Mapping) or not value or not all(_is_class(key) and _is_weight(one) for key, one in value.items()):
            raise WorkloadError(f"{self._name} is {value!r}; expected a dict of a number for each class, such as {{0: 1.0, 1: 5.0}}")
        self._classes, self._weights = (
            np.array([int(key) for key in value], np.int64),
            np.array([float(one) for one in value.values()], np.float32),
        )

    def of_rows(self, targets: Any, weights: Any) -> np.ndarray:
        """Return the class weights of all examples, times their sample weights, if any, in the shape of those."""
        self.check(targets, weights, 1)
        array = np.asarray(targets)
        if array.ndim == _MATRIX:
            array = np.argmax(array, axis=-1) if array.shape[-1] != 1 else array[:, 0]
        match = np.round(array).astype(np.int64)[:, np.newaxis] == self._classes
        own = np.where(match.any(axis=1), match @ self._weights, np.float32(1))
        if weights is None:
            return own.astype(np.float32)
        return (np.asarray(weights, np.float32).T * own).T.astype(np.float32)

    def of_example(self, targets: Any, weights: Any) -> tf.Tensor:
        """Return the class weight of one example, times its sample weight, if any, by TensorFlow operations."""
        if targets.shape.rank:
            targets = tf.argmax(targets, axis=-1) if targets.shape[-1] != 1 else targets[0]
        targets = tf.round(targets) if targets.dtype.is_floating else targets
        match = tf.cast(targets, tf.int64) == self._classes
        own = tf.where(tf.reduce_any(match), tf.reduce_sum(tf.where(match, self._weights, 0.0)), 1.0)
        return own if weights is None else own * tf.cast(weights, tf.float32)

    def check(self, targets: Any, weights: Any, batch: int = 0) -> None:
        """Raise WorkloadError unless each target is a class, by their shapes after the first `batch` dimensions."""
        if tf.nest.is_nested(targets) or (weights is not None and tf.nest.is_nested(weights)):
            raise WorkloadError(
                f"{self._name}: the targets are those of several outputs, and it is not known which of them it means; let train_data return sample weights"
            )
        shape = tuple(targets.shape)[batch:]
        if len(shape) > 1:
            raise WorkloadError(
                f"{self._name}: a target has the shape {shape}; expected an integer or a one-hot row an example. "
                "Let train_data return sample weights"
            )


def _is_class(key: Any) -> bool:
    return isinstance(key, int | np.integer) and not isinstance(key, bool)


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and 0 <= float(value) < float("inf")
