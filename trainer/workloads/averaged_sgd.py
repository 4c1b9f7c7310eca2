"""SGD with a moving average of every variable, which follows the variable closely at the start of a run."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="trainer")
class AveragedSGD(keras.optimizers.SGD):
    """Keras's SGD with `use_ema=True`, whose decay in step n is min(`ema_momentum`, (1 + n) / (10 + n)).

    That is the rule of tf.train.ExponentialMovingAverage with `num_updates`. Keras's own decay is the same from the start:
    with 0.9999, the averages of a run of 1,000 steps would still consist of nine tenths of its initial weights.
    The first step's average is the variable itself.
    """

    def __init__(self, learning_rate: Any = 0.01, *, ema_momentum: float = 0.9999, **options: Any) -> None:
        super().__init__(learning_rate, **{**options, "use_ema": True, "ema_momentum": ema_momentum})

    def _update_model_variables_moving_average(self, trainable_variables: Sequence[Any]) -> None:
        """Take one step of the averages; Keras calls it in `apply`, after the update and before it counts the step."""
        step = tf.cast(self.iterations, tf.float32) + 1
        decay = tf.minimum(tf.constant(self.ema_momentum, tf.float32), (1 + step) / (10 + step))
        rate = tf.where(step > 1, 1 - decay, 1.0)
        for variable, average in zip(trainable_variables, self._model_variables_moving_average, strict=True):
            # On the variable's own device: on parameter servers nothing is sent.
            with tf.device(average.value.device):
                average.value.assign_sub(tf.cast(rate, average.dtype) * (average.value - variable.value))
