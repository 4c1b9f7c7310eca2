"""User code for test_linear_regression.py: linear_regression that prints the line of every training step in each task."""

from collections.abc import Mapping

import tensorflow as tf

from trainer.workloads.linear_regression import LinearRegression


class PrintedLine(LinearRegression):
    """Prints `line: w b` at each step."""

    def metrics(self, targets: tf.Tensor, outputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        if targets.shape[0] == 1:  # a training batch; the size of an evaluation's batch is unknown
            tf.print("line:", outputs["w"][0, 0], outputs["b"][0, 0])
        return super().metrics(targets, outputs)
