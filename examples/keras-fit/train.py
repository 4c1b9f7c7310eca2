"""Keras `fit` on several workers, with Keras' own callbacks: BackupAndRestore, ModelCheckpoint and TensorBoard.

TF_CONFIG says who the workers are; without it this trains alone. RUN_DIR says where to write: one directory that all workers see.
After a kill and a restart it continues from the last whole epoch; when asked to stop, it saves first. Runs with Keras 3, and with Keras 2
where tf_keras is installed and TF_USE_LEGACY_KERAS=1 is set.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow import keras  # Keras 2 with TF_USE_LEGACY_KERAS=1, else Keras 3

KERAS_3 = hasattr(keras, "ops")
STEPS_PER_EPOCH = 60
BATCH = 64  # of each worker
FEATURES, CLASSES = 20, 10


def examples(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Create points around one centre for each class; the centres are the same for each seed."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    random = np.random.default_rng(seed)
    labels = random.integers(CLASSES, size=count)
    points = centres[labels] + random.normal(scale=0.7, size=(count, FEATURES))
    return points.astype("float32"), labels.astype("int64")


def layers() -> tuple[object, object]:
    """Create the layers with their variables; return the model's input and output."""
    inputs = keras.Input((FEATURES,))
    hidden = keras.layers.Dense(64, activation="relu")(inputs)
    return inputs, keras.layers.Dense(CLASSES)(hidden)


def with_vector_metrics(model: keras.Model) -> keras.Model:
    """Have the steps of `model` return metrics of shape [1]: Keras 3 takes their mean over the workers along the first dimension.

    In Keras 2 they stay as they are, of shape [].
    """
    if not KERAS_3:
        return model

    def changed(step: Callable[[object], dict[str, tf.Tensor]]) -> Callable[[object], dict[str, tf.Tensor]]:
        return lambda data: {name: tf.reshape(value, [1]) for name, value in step(data).items()}

    model.train_step, model.test_step = changed(model.train_step), changed(model.test_step)
    return model


def backup_directory(root: Path, task: str, chief: str) -> Path:
    """Return the directory of a task's BackupAndRestore; all start from the chief's backup.

    Call it once the strategy exists: then no worker of an earlier attempt still writes. Keras 2 needs one directory for all, and has the others
    write elsewhere. With Keras 3 all workers write at once, but HDF5 allows only one writer for a file.
    """
    if not KERAS_3:
        return root
    chief_directory, own = root / chief, root / task
    saved = (chief_directory / "training_metadata.json").exists()  # written last: without it the first backup is incomplete
    if task != chief or not saved:
        shutil.rmtree(own, ignore_errors=True)
    if task != chief and saved:
        shutil.copytree(chief_directory, own)
    return own


class StopWhenAsked(keras.callbacks.Callback):
    """Saves and exits with code 143, to be started again, after the batch in which any worker got SIGTERM.

    Create it once the workers are connected, since TensorFlow replaces signal handlers while they connect. The workers ask each other after each
    batch, so that all exit after the same one: a worker that stayed alone would wait for the others' gradients.
    """

    def __init__(self, strategy: tf.distribute.Strategy, backup: keras.callbacks.BackupAndRestore) -> None:
        super().__init__()
        self.strategy, self.backup = strategy, backup
        self.asked, self.epoch = False, 0
        signal.signal(signal.SIGTERM, self.ask)

    def ask(self, *_: object) -> None:
        """Record the signal."""
        self.asked = True

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Store the number of whole epochs."""
        del logs
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Save and exit if any worker was asked to stop."""
        del batch, logs
        if self.strategy.reduce("SUM", tf.constant(float(self.asked)), axis=None) > 0:  # of any worker
            # The current epoch is trained again, from these weights. (Keras 2 stores the epoch in on_epoch_begin.)
            self.backup.on_epoch_begin(self.epoch - 1)
            self.backup.on_epoch_end(self.epoch - 1)
            print(f"saved in epoch {self.epoch + 1}, as it was asked to stop", flush=True)
            sys.exit(143)


def main() -> int:
    """Train, and evaluate."""
    parser = argparse.ArgumentParser(description="Train a classifier on several workers.")
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs

    # Before anything else of TensorFlow: this connects the workers.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    task = f"{resolver.task_type or 'worker'}-{resolver.task_id or 0}"
    chief = "chief-0" if "chief" in resolver.cluster_spec().jobs else "worker-0"
    run_dir = Path(os.environ.get("RUN_DIR", "runs/keras-fit"))
    workers = strategy.num_replicas_in_sync

    # TensorFlow splits every batch between the workers.
    train_set = tf.data.Dataset.from_tensor_slices(examples(20_000, seed=1)).shuffle(20_000).repeat().batch(BATCH * workers)
    test_set = tf.data.Dataset.from_tensor_slices(examples(2_000, seed=2)).batch(500)

    # Layers inside the strategy's scope, the model outside it, and all work with the model inside again:
    # Keras 3 cannot train a model that was created in the scope of several workers.
    with strategy.scope():
        inputs, outputs = layers()
    model = with_vector_metrics(keras.Model(inputs, outputs))

    with tempfile.TemporaryDirectory() as scratch, strategy.scope():
        model.compile(
            optimizer=keras.optimizers.Adam(0.01),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile=False,  # on GPUs Keras 3 would compile a model created outside the scope by XLA, which cannot access its variables
        )
        # Not deleted at the end: else a worker that is lost while another one evaluates would start with the first epoch.
        previous = {"double_checkpoint": True} if KERAS_3 else {}  # keeps the previous backup, in case the last one is incomplete
        backup = keras.callbacks.BackupAndRestore(
            str(backup_directory(run_dir / "backup", task, chief)), delete_checkpoint=False, **previous
        )
        # Every worker saves, as saving creates variables on all of them at once; only the chief's files are kept.
        models = run_dir / "results" if task == chief else Path(scratch)
        models.mkdir(parents=True, exist_ok=True)
        callbacks = [backup, keras.callbacks.ModelCheckpoint(str(models / "epoch-{epoch:02d}.keras")), StopWhenAsked(strategy, backup)]
        if task == chief:
            callbacks.append(keras.callbacks.TensorBoard(str(run_dir / "logs")))
        model.fit(
            train_set,
            epochs=epochs,
            steps_per_epoch=STEPS_PER_EPOCH,
            validation_data=test_set,
            callbacks=callbacks,
            shuffle=False,  # the data set does it
            verbose=2 if task == chief else 0,
        )
        result = model.evaluate(test_set, verbose=0, return_dict=True)

    if task == chief:  # the others have the same weights
        print(f"{task}: {workers} workers, test accuracy {result['accuracy']:.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
