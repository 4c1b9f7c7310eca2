"""A workload with Keras callbacks, and a callback that changes weights and learning rate, for the tests of every strategy."""

# ruff: noqa: ARG002 - hooks have the arguments that Keras gives them

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tests.trainer.engine.small import Small
from trainer.engine import epochs
from trainer.engine.train_config import TrainConfig, train_config
from trainer.settings import TrainerSettings

MakeCallbacks = Callable[[], Sequence[keras.callbacks.Callback]]
EXAMPLES = 400


class SmallWithCallbacks(Small):
    """The workload `Small` with callbacks and a known number of examples, 400."""

    def __init__(self, make_callbacks: MakeCallbacks, **params: Any) -> None:
        super().__init__(params)
        self.callbacks = make_callbacks

    def train_examples(self) -> int:
        return EXAMPLES


def callback_config(workload: SmallWithCallbacks, run_dir: Path, replicas: int = 1, **train: Any) -> TrainConfig:
    """Return a configuration with batches of 16, 25 steps an epoch. It saves and evaluates at the end and when callbacks need it, and exports nothing."""
    base = {"workload": "small:Small", "batch_size": 16, "summaries": {"every_steps": 0, "profile_every_steps": 0}}
    base |= {"checkpoint": {"keep": 2}, "evaluate": {"batch_size": 100}, "export": {"formats": []}}
    settings = {"run": "small", "run_dir": str(run_dir), "scratch_dir": str(run_dir / "scratch"), "train": {**base, **train}}
    return epochs.with_steps(train_config(TrainerSettings.model_validate(settings)), workload, replicas)


class Changing(keras.callbacks.Callback):
    """Sets all weights to 0.5 after epoch 0 (with `weights`) and the rate to 0 before epoch 2, after which it ends the run."""

    def __init__(self, *, weights: bool = True) -> None:
        super().__init__()
        self.changes_weights = weights
        self.weight_sums: list[float] = []  # at the end of each epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 2:
            self.model.optimizer.learning_rate = 0.0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0 and self.changes_weights:
            self.model.set_weights([np.full_like(weight, 0.5) for weight in self.model.get_weights()])
        self.weight_sums.append(weight_sum(self.model))
        self.model.stop_training = epoch == 2


def weight_sum(model: keras.Model) -> float:
    """Return the sum of all weights."""
    return float(sum(np.sum(weight) for weight in model.get_weights()))
