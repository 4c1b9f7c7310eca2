"""The common part of the image classifiers."""

import tensorflow as tf

from trainer.workloads import in_memory
from trainer.workloads.image_set import ImageSet
from trainer.workloads.protocol import Shard


class ImageClassifier:
    """Images to logits [batch, classes]: cross-entropy, accuracy, and the batches. A subclass has the model and the optimizer."""

    def __init__(self, image_set: ImageSet) -> None:
        self._image_set = image_set

    def loss(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return the mean softmax cross-entropy of `outputs` [batch, classes] against integer `targets` [batch], in float32."""
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=tf.cast(outputs, tf.float32)))

    def metrics(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the accuracy: the part of the batch, 0 to 1, whose largest logit is that of its label."""
        is_correct = tf.equal(tf.argmax(outputs, axis=1, output_type=targets.dtype), targets)
        return {"accuracy": tf.reduce_mean(tf.cast(is_correct, tf.float32))}

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        """Return endless shuffled batches of the training images."""
        return in_memory.batches(self._image_set.train.images, self._image_set.train.labels, shard)

    def train_examples(self) -> int:
        """See HasTrainExamples.train_examples."""
        return len(self._image_set.train.labels)

    def eval_data(self, batch_size: int) -> tf.data.Dataset:
        """Return the test images once."""
        return in_memory.once(self._image_set.test.images, self._image_set.test.labels, batch_size)
