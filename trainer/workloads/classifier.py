"""Parts that the image classifiers share: their loss, accuracy and the check of their parameters."""

from collections.abc import Mapping
from typing import Any, TypeVar

import tensorflow as tf
from pydantic import ValidationError

from trainer.settings import Settings
from trainer.workloads.errors import WorkloadError

Params = TypeVar("Params", bound=Settings)


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return the mean softmax cross-entropy of `logits` [batch, classes] against integer `labels` [batch], in float32."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=tf.cast(logits, tf.float32)))


def accuracy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return the part of the batch, 0 to 1, whose largest logit is its label's."""
    return tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, axis=1, output_type=labels.dtype), labels), tf.float32))


def parse_params(model: type[Params], params: Mapping[str, Any]) -> Params:
    """Return `params` as `model`. Raises WorkloadError naming every parameter that is wrong."""
    try:
        return model.model_validate(dict(params))
    except ValidationError as error:
        wrong = [
            f"train.params.{'.'.join(str(part) for part in one['loc'])}: {one['msg']}, found {one['input']!r}" for one in error.errors()
        ]
        raise WorkloadError("; ".join([*wrong, f"the parameters are {', '.join(model.model_fields)}"])) from error
