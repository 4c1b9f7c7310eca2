"""What a compiled Keras model may ask for that the trainer does not do."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from trainer.workloads.errors import WorkloadError
from trainer.workloads.keras_step import overrides

# What a model's class may have in the place of a loss that `compile` is given.
_LOSSES = ("train_step", "compute_loss")
# What only `fit` and `evaluate` call.
_IGNORED = ("fit", "evaluate", "make_train_function", "make_test_function")


def check(model: keras.Model, name: str) -> None:
    """Raise WorkloadError where a model is not compiled, or could not be trained as `fit` would train it; `name` begins the message."""
    has_loss = getattr(model, "_compile_loss", None) is not None
    if not model.compiled or model.optimizer is None or not (has_loss or any(overrides(model, one) for one in _LOSSES)):
        raise WorkloadError(f"{name}: the model {model.name!r} has no loss and optimizer; call model.compile(optimizer=..., loss=...)")
    for one in _IGNORED:
        if overrides(model, one):
            raise WorkloadError(
                f"{name}: {type(model).__name__} has a {one} of its own, which would not be called: the trainer has its own loop. "
                "Move what it does to a batch into train_step or test_step."
            )
    if model.run_eagerly:
        raise WorkloadError(f"{name}: the model is compiled with run_eagerly=True; the trainer runs graphs alone. Leave it out.")
    for layer in model._flatten_layers():  # noqa: SLF001 - Keras has no public way to all of them
        if getattr(layer, "stateful", False):
            raise WorkloadError(
                f"{name}: the layer {layer.name!r} is stateful, so its state goes on from batch to batch, and here each batch is of other examples; "
                "leave stateful=True out and give each example its whole sequence"
            )


def check_evaluation(model: keras.Model, inputs: Callable[[], Any], name: str) -> None:
    """Raise WorkloadError where a built model has no loss on which its evaluations look; `inputs` returns a batch of its inputs."""
    if getattr(model, "_compile_loss", None) is not None or any(overrides(model, one) for one in ("test_step", "compute_loss")):
        return
    if overrides(model, "call"):
        model(inputs())  # what its layers add as losses is there after a call
    if not model.losses:
        raise WorkloadError(
            f"{name}: the model {model.name!r} is compiled without a loss and has a train_step of its own, but no test_step; evaluations need "
            "a loss: give `compile` one, or write a `test_step`"
        )


def check_mean(model: keras.Model, batches: int, name: str) -> None:
    """Raise WorkloadError where the loss of `batches` that make a step together is no mean of theirs."""
    compiled = getattr(model, "_compile_loss", None)
    losses = tf.nest.flatten(compiled._user_loss) if compiled is not None else []  # noqa: SLF001 - Keras has no public name for it
    if batches > 1 and any(getattr(loss, "reduction", None) == "sum" for loss in losses):
        raise WorkloadError(
            f"{name}: the model is compiled with a loss whose reduction is 'sum', and of the {batches} batches of a step the mean is taken; "
            "use reduction='sum_over_batch_size', with a learning rate as many times higher as a batch has examples, or train one batch a step"
        )
