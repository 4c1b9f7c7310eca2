"""Lets users write `if` and `for` on tensors in their functions, as tf.function does.

The engine's own functions are traced as they are written (AutoGraph off), which starts a run half a second sooner.
Each function of the user is converted when it is first called.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core.ag_ctx import ControlStatusCtx, Status

from trainer.workloads.errors import WorkloadError

# Methods of a workload that are traced in a training step; Keras converts its model's layers.
_TRACED = ("loss", "metrics")


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with control flow on tensors converted to TensorFlow's; other control flow stays Python's."""
    on = ControlStatusCtx(Status.ENABLED)
    convert = tf.__internal__.autograph.tf_convert(function, on, user_requested=True)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with workload_errors_unchanged(), on:
            return convert(*arguments, **named)

    return call


@contextmanager
def workload_errors_unchanged() -> Iterator[None]:
    """Let WorkloadErrors through AutoGraph, which replaces errors of classes that it does not know."""
    try:
        yield
    except Exception as error:
        if isinstance(error.__context__, WorkloadError):
            raise error.__context__ from error.__context__.__cause__
        raise


def convert_workload(workload: Any) -> None:
    """Convert the methods of a user's workload that a training step traces, in place."""
    for name in _TRACED:
        # If its class forbids new attributes (__slots__), its methods stay unconverted.
        if hasattr(workload, "__dict__"):
            setattr(workload, name, converted(getattr(workload, name)))
