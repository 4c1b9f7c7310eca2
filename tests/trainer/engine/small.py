"""A workload that trains to the end in a second: two classes of points, with every kind of layer state."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.ops import gen_experimental_dataset_ops

from trainer.engine.train_config import TrainConfig, train_config
from trainer.settings import Train, TrainerSettings
from trainer.strategies import Strategy
from trainer.workloads import in_memory
from trainer.workloads.averaged_sgd import AveragedSGD
from trainer.workloads.protocol import Shard


def small_config(seed: int = 0, strategy: Strategy = "single", **train: Any) -> TrainConfig:
    """Return a configuration of 100 steps with batch 16, for tests that write nothing."""
    settings = Train.model_validate({"workload": "small:Small", "batch_size": 16, "steps": 100, "seed": seed, **train})
    return train_config(TrainerSettings(run="small", strategy=strategy, run_dir="unused", scratch_dir="unused", train=settings))


class Small:
    """Points [batch, 4] to logits [batch, 2].

    `params`: activation, optimizer (a Keras name, or AveragedSGD), early (the optimizer is made with the workload), dropout, noise (of tf.random),
    unseeded (noise of keras.random), normalised ("synchronized": by all replicas); undecayed, the names of variables without weight decay; slow, the
    seconds that each batch of the held-out set takes.
    """

    def __init__(self, params: Mapping[str, Any], data: str = "synthetic", seed: int = 0) -> None:
        self._params, self._seed = dict(params), seed
        self._made: keras.optimizers.Optimizer | None = None
        if self._params.get("early"):
            self._made = self.optimizer()
        random = np.random.default_rng(5)
        self._inputs = random.normal(size=(400, 4)).astype(np.float32)
        self._targets = (self._inputs.sum(axis=1) > 0).astype(np.int64)
        assert data == "synthetic"

    def model(self) -> keras.Model:
        layers: list[Any] = [keras.Input((4,)), keras.layers.Dense(8, activation=self._params.get("activation", "relu"))]
        if normalised := self._params.get("normalised"):
            layers.append(keras.layers.BatchNormalization(synchronized=normalised == "synchronized"))
        if self._params.get("dropout"):
            layers.append(keras.layers.Dropout(0.2, seed=3))
        if self._params.get("noise"):
            layers.append(keras.layers.Lambda(_with_noise))
        if self._params.get("unseeded"):
            layers.append(keras.layers.Lambda(lambda inputs: inputs + keras.random.uniform([])))
        return keras.Sequential([*layers, keras.layers.Dense(2)])

    def optimizer(self) -> keras.optimizers.Optimizer:
        if self._made is not None:
            return self._made
        name, arguments = self._params.get("optimizer", "Adam"), dict(self._params.get("arguments", {}))
        if self._params.get("schedule"):
            arguments["learning_rate"] = keras.optimizers.schedules.ExponentialDecay(0.05, 10, 0.9)
        optimizer_class = AveragedSGD if name == "AveragedSGD" else getattr(keras.optimizers, name)
        optimizer = optimizer_class(**{"learning_rate": 0.05, **arguments})
        if undecayed := self._params.get("undecayed"):
            optimizer.exclude_from_weight_decay(var_names=undecayed)
        return optimizer

    def loss(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=outputs))

    def metrics(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"accuracy": tf.reduce_mean(tf.cast(tf.argmax(outputs, axis=1) == targets, tf.float32))}

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        return in_memory.batches(self._inputs, self._targets, shard)

    def eval_data(self, batch_size: int) -> tf.data.Dataset:
        data = in_memory.once(self._inputs, self._targets, batch_size)
        if seconds := self._params.get("slow"):
            data = data.map(lambda x, y: (tf.ensure_shape(tf.numpy_function(_wait, [x, seconds], tf.float32), x.shape), y))
        return data


def delayed(data: tf.data.Dataset, microseconds: Any) -> tf.data.Dataset:
    """Return `data` with a pause before each batch. A TensorFlow operation sleeps, because workers run no Python."""
    types, shapes = ([getattr(spec, name) for spec in data.element_spec] for name in ("dtype", "shape"))
    asleep = gen_experimental_dataset_ops.sleep_dataset(data._variant_tensor, microseconds, output_types=types, output_shapes=shapes)
    return dataset_ops._VariantDataset(asleep, data.element_spec)


def _with_noise(inputs: tf.Tensor) -> tf.Tensor:
    """Add a number that an operation of TensorFlow draws, in a graph of its own."""
    return tf.cond(tf.shape(inputs)[0] > 0, lambda: inputs + tf.random.uniform([]), lambda: inputs)


def _wait(inputs: Any, seconds: float) -> Any:
    print("a slow batch", flush=True)
    time.sleep(float(seconds))
    return inputs


class Delayed(Small):
    """Waits `seconds` for each batch, in place of computing, and `slower` times as long in the last of several readers.

    Nothing waits if `params` name a file, `hurry`, that exists when the data set is created.
    """

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        index, count = tf.cast(shard.index, tf.int64), tf.cast(shard.count, tf.int64)
        factor = tf.where((index == count - 1) & (count > 1), tf.constant(int(self._params["slower"]), tf.int64), 1)
        data = super().train_data(shard)
        hurry = self._params.get("hurry")
        if hurry and Path(hurry).exists():
            return data
        return delayed(data, factor * int(self._params["seconds"] * 1e6))


class Alike(Small):
    """Gives every worker the same batch in every step, and learns nothing: a step's loss depends only on random layers."""

    def optimizer(self) -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(0.0)

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        return super().train_data(replace(shard, index=0, count=1, start=0)).take(1).repeat()


class Ending(Small):
    """Gives only 5 batches; with `unknown` in `params` its cardinality is unknown."""

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        data = super().train_data(shard).take(5)
        return data.filter(lambda *_: True) if self._params.get("unknown") else data


class Poisoned(Small):
    """Gives the last reader inputs of NaN from its batch `bad` on, counted from 0, or only in that batch with `once`.

    With the activation tanh the loss is NaN, too; with relu it is finite, and only the gradients are not.
    """

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        first_bad, once = self._params["bad"], self._params.get("once", False)
        is_last_reader = tf.cast(shard.index, tf.int64) == tf.cast(shard.count, tf.int64) - 1

        def poisoned(index: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
            index += tf.cast(shard.start, tf.int64)
            bad = is_last_reader & ((index == first_bad) if once else (index >= first_bad))
            return tf.where(bad, np.nan, batch[0]), batch[1]

        return super().train_data(shard).enumerate().map(poisoned)
