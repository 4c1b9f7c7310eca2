"""cifar10: a convolutional network on small images, trained with augmentation and evaluated with averaged weights."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.workloads import augmentation, cifar10_data, in_memory, network_summaries
from trainer.workloads.averaged_sgd import AveragedSGD
from trainer.workloads.catalog import Cifar10Params, parse_params
from trainer.workloads.classifier import ImageClassifier
from trainer.workloads.local_response import LocalResponse
from trainer.workloads.protocol import Shard

# As published: the learning rate falls to a tenth every 350 epochs, counted in one GPU's batches of 128.
EPOCHS_PER_DECAY = 350
DECAY = 0.1
PUBLISHED_BATCH = 128

# Keras's L2 is a factor of the sum of squares, the published weight decay one of half that sum.
WEIGHT_DECAY = 0.004

# With GPUs, several batches are made in parallel to the training: one takes a core longer than a step takes a GPU.
PARALLEL_CALLS = 8
PREFETCHED_BATCHES = 4

SUMMARY_IMAGES = 10
SUMMARY_BATCH = 64
ACTIVATIONS = ("pool1_relu", "conv2", "local3", "local4", "logits")


class Cifar10(ImageClassifier):
    """Images [batch, 24, 24, 3], standardized, to logits [batch, 10]; cross-entropy, accuracy, SGD with averages.

    `data` is `synthetic`, `download` or a directory of CIFAR-10's binary files. Raises WorkloadError for wrong `params`,
    DataError where the data is missing or wrong.
    """

    def __init__(self, params: Mapping[str, Any], data: str, seed: int) -> None:
        self._params = parse_params(Cifar10Params, params)
        super().__init__(cifar10_data.load(data))
        self._seed = seed

    def model(self) -> keras.Model:
        """Return the network; truncated-normal weights; the two dense layers have L2 weight decay, as layer losses."""
        filters = self._params.filters

        def initializer(stddev: float, layer: int) -> keras.initializers.Initializer:
            return keras.initializers.TruncatedNormal(stddev=stddev, seed=self._seed + layer)

        def conv(name: str, layer: int, bias: float, activation: str | None) -> keras.layers.Layer:
            return keras.layers.Conv2D(
                filters,
                5,
                padding="same",
                activation=activation,
                kernel_initializer=initializer(0.05, layer),
                bias_initializer=_bias(bias),
                name=name,
            )

        def dense(name: str, layer: int, units: int) -> keras.layers.Layer:
            return keras.layers.Dense(
                units,
                activation="relu",
                kernel_initializer=initializer(0.04, layer),
                kernel_regularizer=keras.regularizers.L2(WEIGHT_DECAY / 2),
                bias_initializer=_bias(0.1),
                name=name,
            )

        def pool(name: str) -> keras.layers.Layer:
            return keras.layers.MaxPooling2D(3, 2, padding="same", name=name)

        return keras.Sequential(
            [
                keras.Input((augmentation.CROP, augmentation.CROP, cifar10_data.CHANNELS), name="pictures"),
                # max(relu(x)) equals relu(max(x)): after the pool ReLU has a quarter of the work.
                conv("conv1", 0, 0.0, None),
                pool("pool1"),
                keras.layers.ReLU(name="pool1_relu"),
                LocalResponse(name="norm1"),
                conv("conv2", 1, 0.1, "relu"),
                LocalResponse(name="norm2"),
                pool("pool2"),
                keras.layers.Flatten(name="flat"),
                dense("local3", 2, 384),
                dense("local4", 3, 192),
                keras.layers.Dense(cifar10_data.CLASSES, kernel_initializer=initializer(1 / 192, 4), name="logits"),
            ],
            name="cifar10",
        )

    def optimizer(self) -> keras.optimizers.Optimizer:
        """Return the optimizer of one replica with the published batch."""
        return self.optimizer_for(PUBLISHED_BATCH)

    def optimizer_for(self, examples_per_step: int) -> keras.optimizers.Optimizer:
        """Return SGD with averages of the variables, whose learning rate falls to a tenth every 350 epochs."""
        steps = max(1, EPOCHS_PER_DECAY * len(self._image_set.train.labels) // examples_per_step)
        rate = keras.optimizers.schedules.ExponentialDecay(self._params.learning_rate, steps, DECAY, staircase=True)
        return AveragedSGD(rate, ema_momentum=self._params.moving_average)

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        """Return endless shuffled batches of training images, distorted."""
        index, count, start, seed = (tf.cast(value, tf.int64) for value in (shard.index, shard.count, shard.start, shard.seed))
        batches = super().train_data(shard)
        numbers = tf.data.Dataset.range(start, in_memory.ENDLESS)

        @in_memory.do_not_convert
        def distort(batch: tuple[tf.Tensor, tf.Tensor], number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            images, labels = batch
            return augmentation.distorted(images, seed, (number * count + index) * shard.batch_size), labels

        numbered = tf.data.Dataset.zip((batches, numbers))
        if not tf.config.list_physical_devices("GPU"):
            return numbered.map(distort)  # the cores belong to the training step
        return numbered.map(distort, num_parallel_calls=PARALLEL_CALLS, deterministic=True).prefetch(PREFETCHED_BATCHES)

    def eval_data(self, batch_size: int) -> tf.data.Dataset:
        """Return the middle of each test image once."""
        central = in_memory.do_not_convert(lambda images, labels: (augmentation.central(images), labels))
        return super().eval_data(batch_size).map(central)

    def write_summaries(self, model: keras.Model, step: int) -> None:
        """Write 10 training images as the network sees them, every variable, and each layer's activations and their sparsity."""
        train = self._image_set.train
        shown, _ = next(iter(self.train_data(Shard(min(SUMMARY_IMAGES, len(train.labels)), self._seed, start=step))))
        # Standardized pixels lie about 0; most within 2.5 of it.
        tf.summary.image("inputs", tf.clip_by_value(shown / 5 + 0.5, 0, 1), max_outputs=SUMMARY_IMAGES)
        network_summaries.variables(model)
        layers: dict[str, np.ndarray] = {}
        values: Any = augmentation.central(tf.constant(self._image_set.test.images[:SUMMARY_BATCH]))
        for layer in model.layers:
            values = layer(values)
            if layer.name in ACTIVATIONS:
                layers[f"{layer.name}/activations"] = keras.ops.convert_to_numpy(values)
        network_summaries.outputs(layers)
        for name, array in layers.items():
            tf.summary.scalar(name.replace("activations", "sparsity"), float((array == 0).mean()))


def _bias(value: float) -> keras.initializers.Initializer:
    return keras.initializers.Constant(value)
