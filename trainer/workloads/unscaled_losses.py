"""Keras's losses under a strategy of several replicas, as means over one replica's batch."""

from collections.abc import Iterator
from contextlib import contextmanager

from keras.src.losses import loss


@contextmanager
def unscaled_losses() -> Iterator[None]:
    """Let Keras's losses be means over one replica's batch while a step is traced.

    Under a strategy Keras divides each mean by the number of replicas, as it sums their gradients; the trainer takes the gradients' mean.
    """
    names = ("scale_loss_for_distribution", "unscale_loss_for_distribution")
    own = {name: getattr(loss, name) for name in names}
    for name in names:
        setattr(loss, name, lambda value: value)
    try:
        yield
    finally:
        for name, function in own.items():
            setattr(loss, name, function)
