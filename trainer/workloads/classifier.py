"""The common part of the image classifiers, and the check of a workload's parameters."""

from collections.abc import Mapping
from typing import Any, TypeVar

import tensorflow as tf
from pydantic import ValidationError

from trainer.settings import Settings
from trainer.workloads import in_memory
from trainer.workloads.errors import WorkloadError
from trainer.workloads.image_set import ImageSet
from trainer.workloads.protocol import Shard

Params = TypeVar("Params", bound=Settings)


class ImageClassifier:
    """Pictures to logits [batch, classes]: cross-entropy, accuracy, and the batches. A subclass has the model and the optimizer."""

    def __init__(self, pictures: ImageSet) -> None:
        self._pictures = pictures

    def loss(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return the mean softmax cross-entropy of `outputs` [batch, classes] against integer `targets` [batch], in float32."""
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=tf.cast(outputs, tf.float32)))

    def metrics(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the accuracy: the part of the batch, 0 to 1, whose largest logit is that of its label."""
        is_correct = tf.equal(tf.argmax(outputs, axis=1, output_type=targets.dtype), targets)
        return {"accuracy": tf.reduce_mean(tf.cast(is_correct, tf.float32))}

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        """Return endless shuffled batches of the training pictures."""
        return in_memory.batches(self._pictures.train.images, self._pictures.train.labels, shard)

    def train_examples(self) -> int:
        """See HasTrainExamples.train_examples."""
        return len(self._pictures.train.labels)

    def eval_data(self, batch_size: int) -> tf.data.Dataset:
        """Return the test pictures once."""
        return in_memory.once(self._pictures.test.images, self._pictures.test.labels, batch_size)


def parse_params(model: type[Params], params: Mapping[str, Any]) -> Params:
    """Return `params` as `model`. Raises WorkloadError naming every parameter that is wrong."""
    try:
        return model.model_validate(dict(params))
    except ValidationError as error:
        wrong = [
            f"train.params.{'.'.join(str(part) for part in one['loc'])}: {one['msg']}, found {one['input']!r}" for one in error.errors()
        ]
        raise WorkloadError("; ".join([*wrong, f"the parameters are {', '.join(model.model_fields)}"])) from error
