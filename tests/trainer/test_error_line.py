"""The one line that describes an error, for errors as Python, TensorFlow and Keras raise them."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from trainer.error_line import error_line


def plain() -> None:
    raise ValueError("the file is empty\nit has 0 bytes")


def without_message() -> None:
    raise ValueError


@tf.function
def while_traced(values: Any) -> Any:
    """A user's loss that refuses its input."""
    if tf.reduce_sum(values) > 0:
        raise KeyError("no column 'price' in the targets")
    return values


@tf.function
def while_run(values: Any) -> Any:
    return tf.debugging.check_numerics(values / 0.0, "the loss is not finite")


class Halve(keras.layers.Layer):
    """A user's layer that refuses its input."""

    built = True

    def call(self, _values: Any) -> Any:
        raise RuntimeError("width must be even")


@pytest.mark.parametrize(
    "failing,expected",
    [
        (plain, "ValueError: the file is empty"),
        (without_message, "ValueError: "),
        (lambda: while_traced(tf.ones([2])), "KeyError: \"no column 'price' in the targets\""),
        (lambda: while_run(tf.ones([2])), "InvalidArgumentError: the loss is not finite : Tensor had Inf values"),
        (lambda: Halve()(tf.ones([2, 3])), "RuntimeError: width must be even"),
        (lambda: tf.function(Halve())(tf.ones([2, 3])), "RuntimeError: width must be even"),
        (lambda: tf.ones([2, 3]) @ tf.ones([2, 3]), "InvalidArgumentError: Matrix size-incompatible: In[0]: [2,3], In[1]: [2,3]"),
    ],
    ids=["plain", "without a message", "traced", "run", "layer", "layer in a graph", "operation"],
)
def test_the_line_names_the_error(failing: Callable[[], Any], expected: str) -> None:
    with pytest.raises(Exception) as raised:
        failing()
    assert error_line(raised.value).partition(" [Op:")[0] == expected


def test_the_message_of_a_graph_error_without_frames_is_found() -> None:
    message = "Graph execution error:\n\nDetected at node Assert defined at (most recent call last):\n<stack traces unavailable>\nno rows\n\t [[{{node Assert}}]]"
    assert error_line(ValueError(message)) == "ValueError: no rows"


@pytest.mark.parametrize(
    "before", ["", "  (0) CANCELLED:  another has failed\n\t [[{{node while/Send}}]]\n"], ids=["", "after a cancelled one"]
)
def test_the_first_of_several_errors_is_shown(before: str) -> None:
    message = f"""Graph execution error:

Detected at node while/Assert defined at (most recent call last):
<stack traces unavailable>
2 root error(s) found.
{before}  (0) INVALID_ARGUMENT:  assertion failed: [a target is too large] [7.5]
\t [[{{{{node while/Assert}}}}]]
  (1) INVALID_ARGUMENT:  assertion failed: [a target is too large] [9]
\t [[{{{{node while/Assert}}}}]]
0 successful operations.
0 derived errors ignored. [Op:__inference_call_631]"""
    assert error_line(ValueError(message)) == "ValueError: assertion failed: [a target is too large] [7.5]"
