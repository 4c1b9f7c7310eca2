"""Detects changes of a model's variables by other code than the training, such as callbacks."""

from collections.abc import Sequence

import keras
import numpy as np


class Snapshot:
    """The values of variables at its creation."""

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        self._variables = list(variables)
        self._before = [_bits(variable) for variable in self._variables]

    def changed(self) -> bool:
        """Return whether any of the variables has changed since, bit by bit: NaN is equal to itself."""
        return any(not np.array_equal(_bits(variable), before) for variable, before in zip(self._variables, self._before, strict=True))


def _bits(variable: keras.Variable) -> np.ndarray:
    return np.ascontiguousarray(variable.value.numpy()).reshape(-1).view(np.uint8)
