"""The train op that a model function returns: how the loss is to be made small, said rather than done.

The engine takes the gradients, brings the replicas' together, and applies them where the variables are.
"""

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf


@dataclass(frozen=True)
class TrainOp:
    """Make `loss` small with `optimizer`."""

    loss: tf.Tensor
    optimizer: keras.optimizers.Optimizer


def minimize(loss: tf.Tensor, optimizer: Any) -> TrainOp:
    """Return the train op that makes `loss` small. `optimizer` is a Keras optimizer, or the name of one.

    `loss` is the one that the model function returns; ValueError where there is no optimizer of that name.
    """
    return TrainOp(loss, keras.optimizers.get(optimizer))
