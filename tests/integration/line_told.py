"""linear_regression that prints the line of every training step in each task: code of a user's own, for test_linear_regression.py."""

from collections.abc import Mapping

import tensorflow as tf

from trainer.workloads.linear_regression import LinearRegression


class Told(LinearRegression):
    """Prints `line: w b` a step."""

    def metrics(self, targets: tf.Tensor, outputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        if targets.shape[0] == 1:  # a batch that is trained on; the size of one that is evaluated is open
            tf.print("line:", outputs["w"][0, 0], outputs["b"][0, 0])
        return super().metrics(targets, outputs)
