"""Keras 2's `fit` on the chief, and its SidecarEvaluator on the evaluator, which follows the chief's checkpoints. Needs tf_keras.

The evaluator ends when it has evaluated as many checkpoints as there are epochs, or, with `--endless`, never, as in Keras' documentation.
Both use the checkpoints in RUN_DIR.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras

EPOCHS = 3


def model() -> tf_keras.Model:
    """Make a model of one neuron, compiled."""
    neuron = tf_keras.Sequential([tf_keras.layers.InputLayer((4,)), tf_keras.layers.Dense(1)])
    neuron.compile(optimizer=tf_keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
    return neuron


def numbers(seed: int) -> tf.data.Dataset:
    """Make vectors and their sums."""
    x = np.random.default_rng(seed).normal(size=(512, 4)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(32)


def main() -> int:
    """Be the task that TF_CONFIG names."""
    parser = argparse.ArgumentParser(description="Train, or evaluate what is trained.")
    parser.add_argument("--endless", action="store_true", help="let the evaluator wait for checkpoints for as long as it lives")
    endless = parser.parse_args().endless
    checkpoints, logs = (str(Path(os.environ["RUN_DIR"], part)) for part in ("checkpoints", "logs"))
    if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "evaluator":
        tf_keras.utils.SidecarEvaluator(
            model(),
            data=numbers(seed=2),
            checkpoint_dir=checkpoints,
            max_evaluations=None if endless else EPOCHS,
            callbacks=[tf_keras.callbacks.TensorBoard(logs)],
        ).start()
    else:
        save = tf_keras.callbacks.ModelCheckpoint(f"{checkpoints}/ckpt-{{epoch}}", save_weights_only=True)
        model().fit(numbers(seed=1), epochs=EPOCHS, callbacks=[save], verbose=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
