"""Keras's callbacks of a user's module in a whole run on parameter servers, whose chief is killed midway."""

import csv
from pathlib import Path

import pytest
import yaml

from tests.integration.running import Run

MODULE = """
import keras, numpy as np, os, pathlib, signal
from keras import callbacks as keras_callbacks

def points(count, seed):
    x = np.random.default_rng(seed).uniform(-1, 1, (count, 2))
    return x, (np.square(x).sum(axis=1) > 0.6).astype(np.float32)

train_data, eval_data = points(400, 1), points(100, 2)

def model():
    circle = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dense(1, "sigmoid")])
    circle.compile(keras.optimizers.Adam(0.01), loss="binary_crossentropy", metrics=["accuracy"])
    return circle

class Killing(keras_callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        marker = pathlib.Path(os.environ["RUN_DIR"], "killed")
        if epoch == 3 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

def callbacks():
    return [
        keras_callbacks.CSVLogger("log.csv"),
        keras_callbacks.ModelCheckpoint("best.keras", monitor="val_accuracy", save_best_only=True),
        keras_callbacks.ReduceLROnPlateau(monitor="val_accuracy", min_delta=10.0, patience=2, factor=0.5),
        keras_callbacks.EarlyStopping(monitor="val_accuracy", min_delta=10.0, patience=5, restore_best_weights=True),
        Killing(),
    ]
"""


@pytest.mark.slow
def test_callbacks_keep_their_state_when_the_chief_is_killed(tmp_path: Path) -> None:
    (tmp_path / "circle.py").write_text(MODULE)
    spec = {
        "version": 1,
        "name": "callbacks",
        "strategy": "parameter_server",
        "roles": {"chief": {}, "ps": {}, "worker": {"replicas": 2}},
        "code": ".",
        "train": {"workload": "circle:model", "epochs": 50, "batch_size": 16, "checkpoint": {"every_steps": 10}},
    }
    (tmp_path / "callbacks.yaml").write_text(yaml.safe_dump(spec))
    run = Run("callbacks", tmp_path / "runs")
    run.launcher("up", str(tmp_path / "callbacks.yaml"), check=False)
    status = run.status()
    # The first epoch is better than none, and five are no better; the rate was halved after two and after four of them.
    assert (status["state"], status["step"], status["steps"]) == ("succeeded", 6 * 25, 50 * 25), status
    assert (run.directory / "killed").exists()
    assert len(run.events("chief", "restored")) == 1
    assert status["ended_early"] == "the callback EarlyStopping.on_epoch_end has set model.stop_training in epoch 6"
    rows = list(csv.DictReader((run.directory / "results" / "log.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == list("012345")
    assert (run.directory / "results" / "best.keras").exists()
    best = float(rows[0]["val_accuracy"])
    assert status["metrics"]["accuracy"] == pytest.approx(best)
    assert not list(tmp_path.glob("*.csv"))
