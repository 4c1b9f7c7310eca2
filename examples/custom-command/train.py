"""Multi-worker training with Keras `fit`: each worker trains on its own batches, and all keep the same weights.

TF_CONFIG says who the workers are; without it this trains alone. RUN_DIR says where to write.
After a kill and a restart it continues from the last whole epoch; when asked to stop, it saves first.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

EPOCHS = 5
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


class Classifier(keras.Sequential):
    """A Keras model whose steps return metrics with one dimension.

    `fit` takes the mean over the workers along the first dimension; a plain number has none.
    """

    def train_step(self, data: object) -> dict[str, tf.Tensor]:
        """Train on one batch."""
        return {name: tf.reshape(value, [1]) for name, value in super().train_step(data).items()}

    def test_step(self, data: object) -> dict[str, tf.Tensor]:
        """Evaluate on one batch."""
        return {name: tf.reshape(value, [1]) for name, value in super().test_step(data).items()}


class Backup(keras.callbacks.Callback):
    """Saves the model after each epoch, as `epoch-<number>.weights.h5` with the optimizer's state.

    Saving creates variables inside Keras, which under a strategy all workers must do together: so all save, and all but
    the chief discard their files.
    """

    def __init__(self, directory: Path, *, is_chief: bool) -> None:
        super().__init__()
        self.directory = directory
        self.is_chief = is_chief

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Save; a file under its final name is always complete."""
        del logs
        self.save(epoch + 1)

    def save(self, epochs: int) -> None:
        """Save the weights after so many whole epochs."""
        with tempfile.TemporaryDirectory(dir=self.directory if self.is_chief else None) as scratch:
            written = Path(scratch) / "new.weights.h5"
            self.model.save_weights(written)
            if self.is_chief:
                written.replace(self.directory / f"epoch-{epochs}.weights.h5")

    def newest(self) -> tuple[int, Path | None]:
        """Return how many epochs are done, and the file that holds them."""
        saved = {int(file.name.split(".")[0].removeprefix("epoch-")): file for file in self.directory.glob("epoch-*.weights.h5")}
        return max(saved.items(), default=(0, None))


class StopWhenAsked(keras.callbacks.Callback):
    """Saves and exits with code 143, to be started again, after the batch in which any worker got SIGTERM.

    Create it once the workers are connected, since TensorFlow replaces signal handlers while they connect. The workers ask each other after each
    batch, so that all exit after the same one: a worker that stayed alone would wait for the others' gradients.
    """

    def __init__(self, strategy: tf.distribute.Strategy, backup: Backup) -> None:
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
        asked = tf.constant(float(self.asked))
        if self.strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", asked)) > 0:
            self.backup.save(self.epoch)  # the current epoch is trained again, from these weights
            print(f"saved in epoch {self.epoch + 1}, as it was asked to stop", flush=True)
            sys.exit(143)


def main() -> int:
    """Train, save after each epoch, and evaluate."""
    # Before anything else of TensorFlow: this connects the workers.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    task = f"{resolver.task_type or 'worker'}-{resolver.task_id or 0}"
    has_chief = "chief" in resolver.cluster_spec().jobs
    is_chief = resolver.task_type == "chief" or (not has_chief and not resolver.task_id)
    run_dir = Path(os.environ.get("RUN_DIR", "runs/custom-command"))
    (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    workers = strategy.num_replicas_in_sync
    print(f"{task}: {workers} workers", flush=True)

    # TensorFlow splits every batch between the workers.
    train_set = tf.data.Dataset.from_tensor_slices(examples(20_000, seed=1)).shuffle(20_000, seed=0).repeat().batch(BATCH * workers)
    test_set = tf.data.Dataset.from_tensor_slices(examples(2_000, seed=2)).batch(500)

    # Keras 3 runs `fit` on several workers if the model object is created outside the strategy's scope, but is built,
    # compiled and trained inside it, since that creates variables.
    model = Classifier([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(CLASSES)])
    with strategy.scope():
        model.build((None, FEATURES))
        model.compile(
            optimizer=keras.optimizers.Adam(0.01),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        backup = Backup(run_dir / "checkpoints", is_chief=is_chief)
        epochs_done, saved = backup.newest()
        if saved:
            model.optimizer.build(model.trainable_variables)  # so that its state is loaded too
            model.load_weights(saved)
            print(f"{task}: continuing after epoch {epochs_done}, from {saved}", flush=True)
        started = time.monotonic()
        model.fit(
            train_set,
            epochs=EPOCHS,
            steps_per_epoch=STEPS_PER_EPOCH,
            initial_epoch=epochs_done,
            callbacks=[backup, StopWhenAsked(strategy, backup)],
            shuffle=False,  # the data set does it
            verbose=2 if is_chief else 0,
        )
        seconds = time.monotonic() - started
        result = model.evaluate(test_set, verbose=0, return_dict=True)

    if is_chief:  # the others have the same weights
        print(f"{task}: trained in {seconds:.1f} s, test accuracy {result['accuracy']:.3f}, weights in {backup.newest()[1]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
