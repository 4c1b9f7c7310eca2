"""The train op that a model function returns: a description of the minimization, not an operation.

The engine computes the gradients, combines those of the replicas, and applies them to the variables.
"""

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf


@dataclass(frozen=True)
class TrainOp:
    """Minimize `loss` with `optimizer`."""

    loss: tf.Tensor
    optimizer: keras.optimizers.Optimizer


def minimize(loss: tf.Tensor, optimizer: Any) -> TrainOp:
    """Return the train op that minimizes `loss`, which the model function also returns.

    `optimizer` is a Keras optimizer, or the name of one. Raises ValueError for an unknown name.
    """
    return TrainOp(loss, keras.optimizers.get(optimizer))
