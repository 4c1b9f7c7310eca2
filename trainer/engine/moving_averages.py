"""Moving averages of variables, which an optimizer with Keras's `use_ema` keeps: what is evaluated in the place of the variables."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf


def are_enabled(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether the optimizer keeps averages; one that scales the loss leaves that to the one inside."""
    return bool(getattr(optimizer, "inner_optimizer", optimizer).use_ema)


def are_available(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether the optimizer keeps averages, and has taken a step, before which they say nothing."""
    return are_enabled(optimizer) and int(keras.ops.convert_to_numpy(optimizer.iterations)) > 0


def take(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
    """Put the averages in the place of the model's trainable variables; nothing where the optimizer keeps none."""
    if are_available(optimizer):
        optimizer.finalize_variable_values(model.trainable_variables)


@contextmanager
def shown(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Let the model have the averages inside, and its own values again afterwards."""
    if not are_available(optimizer):
        yield
        return
    own = [tf.identity(variable.value) for variable in model.trainable_variables]
    take(model, optimizer)
    try:
        yield
    finally:
        for variable, value in zip(model.trainable_variables, own, strict=True):
            variable.value.assign(value)
