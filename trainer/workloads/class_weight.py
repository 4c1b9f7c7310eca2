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
        self._classes = np.array(sorted(map(int, value)), np.int64)
        self._weights = np.array([value[key] for key in self._classes], np.float32)

    def of_rows(self, targets: Any, weights: Any) -> np.ndarray:
        """Return each example's class weight times its sample weight (if any), shaped like the sample weights."""
        self.check(targets, weights, 1)
        with tf.device("CPU:0"):  # a GPU's memory is the model's
            own: np.ndarray = self._of_targets(targets).numpy()
        return own if weights is None else (np.asarray(weights, np.float32).T * own).T

    def of_example(self, targets: Any, weights: Any) -> tf.Tensor:
        """Return the class weight of one example, times its sample weight, if any, by TensorFlow operations."""
        own = self._of_targets(targets[tf.newaxis])[0]
        return own if weights is None else own * tf.cast(weights, tf.float32)

    def _of_targets(self, targets: Any) -> tf.Tensor:
        """Return the class weights of a batch of targets, float32 [batch]; 1 for NaN, which is no class."""
        if len(targets.shape) == _MATRIX:
            targets = tf.argmax(targets, axis=-1) if targets.shape[-1] != 1 else targets[:, 0]
        # Not cast to an integer: NaN would be another one on each kind of processor.
        targets = tf.round(tf.cast(targets, tf.float64)) if tf.as_dtype(targets.dtype).is_floating else tf.cast(targets, tf.int64)
        classes = tf.cast(self._classes, targets.dtype)
        place = tf.minimum(tf.searchsorted(classes, targets), len(self._classes) - 1)
        return tf.where(tf.gather(classes, place) == targets, tf.gather(self._weights, place), 1.0)

    def check(self, targets: Any, weights: Any, batch: int = 0) -> None:
        """Raise WorkloadError unless each target is a class, by their type, and their shapes after the first `batch` dimensions."""
        if tf.nest.is_nested(targets) or (weights is not None and tf.nest.is_nested(weights)):
            raise WorkloadError(
                f"{self._name}: the targets are those of several outputs, and it is not known which of them it means; let train_data return sample weights"
            )
        shape, kind = tf.TensorShape(targets.shape), tf.as_dtype(targets.dtype)
        if shape.rank is None or shape.rank > 1 + batch or not (kind.is_floating or kind.is_integer or kind.is_bool):
            raise WorkloadError(
                f"{self._name}: a target has the type {kind.name} and the shape {shape[batch:]}; expected an integer or a one-hot row an example. "
                "Let train_data return sample weights"
            )


def _is_class(key: Any) -> bool:
    return isinstance(key, int | np.integer) and not isinstance(key, bool)


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and 0 <= float(value) < float("inf")
