"""Moving averages of variables, which an optimizer with Keras's `use_ema` keeps: they are evaluated and exported in place of the variables."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf

from trainer.engine import schedules


def are_enabled(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether the optimizer keeps averages, or the one that it wraps to scale the loss."""
    return bool(schedules.inner(optimizer).use_ema)


def are_available(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether the optimizer keeps averages and has taken a step: before that they have no meaning."""
    return are_enabled(optimizer) and int(keras.ops.convert_to_numpy(optimizer.iterations)) > 0


def swap_in(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
    """Replace the model's trainable variables by their averages, if the optimizer keeps any."""
    if are_available(optimizer):
        optimizer.finalize_variable_values(model.trainable_variables)


@contextmanager
def swapped_in(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Give the model the averages inside, and its own values again afterwards."""
    if not are_available(optimizer):
        yield
        return
    own = [tf.identity(variable.value) for variable in model.trainable_variables]
    swap_in(model, optimizer)
    try:
        yield
    finally:
        for variable, value in zip(model.trainable_variables, own, strict=True):
            variable.value.assign(value)
