"""mnist: an MLP 784-500-10 with dropout on digits, with everything that TensorBoard shows."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.workloads import mnist_data, network_summaries, projector
from trainer.workloads.catalog import MnistParams, parse_params
from trainer.workloads.mnist_mlp import DigitClassifier

INPUT_IMAGES = 10
PROJECTED_DIGITS = 500

WEIGHTS = "hidden_weights"
ACTIVATIONS = "hidden_activations"

# Names of layers, for the summaries and in the graph.
PRE_ACTIVATIONS = ("hidden", "logits")
HIDDEN_ACTIVATION = "hidden_relu"


class Mnist(DigitClassifier):
    """An MLP with dropout, with all summaries. Raises WorkloadError for wrong `params`."""

    def __init__(self, params: Mapping[str, Any], data: str, seed: int) -> None:
        self._params = parse_params(MnistParams, params)
        super().__init__(self._params.learning_rate, data)
        self._seed = seed
        self._logdir: str | None = None

    def model(self) -> keras.Model:
        """Return the MLP; weights are truncated normal with stddev 0.1, biases 0.1."""

        def dense(units: int, name: str, layer: int) -> keras.layers.Layer:
            weights = keras.initializers.TruncatedNormal(stddev=0.1, seed=self._seed + layer)
            return keras.layers.Dense(units, kernel_initializer=weights, bias_initializer=keras.initializers.Constant(0.1), name=name)

        return keras.Sequential(
            [
                keras.Input((mnist_data.PIXELS,), dtype="uint8", name="digits"),
                keras.layers.Rescaling(1 / 255, name="scale"),
                dense(self._params.hidden_units, "hidden", 0),
                keras.layers.ReLU(name=HIDDEN_ACTIVATION),
                keras.layers.Dropout(1 - self._params.dropout_keep, seed=self._seed, name="dropout"),
                dense(mnist_data.CLASSES, "logits", 1),
            ],
            name="mnist",
        )

    def write_start_summaries(self, model: keras.Model, logdir: str) -> None:
        """Write the graph of a training step's loss and metrics, and all files of the projector."""
        self._logdir = logdir
        tf.summary.graph(self._graph(model))
        test = self._image_set.test
        shown = min(PROJECTED_DIGITS, len(test.labels))
        side = mnist_data.SIDE
        pixels = projector.Labels(
            ("pixel", "row", "column"), [(f"{n // side},{n % side}", n // side, n % side) for n in range(side * side)]
        )
        digits = projector.Labels(("digit",), [(int(label),) for label in test.labels[:shown]])
        units = self._params.hidden_units
        projector.write_config(
            logdir,
            [
                projector.Embedding(ACTIVATIONS, shown, units, digits, test.images[:shown].reshape(-1, side, side)),
                projector.Embedding(WEIGHTS, mnist_data.PIXELS, units, pixels),
            ],
        )
        self._write_tensors(model, self._layers(model), logdir)

    def write_summaries(self, model: keras.Model, step: int) -> None:
        """Write 10 inputs, the dropout keep probability, every variable and layer, and the projector's points."""
        test = self._image_set.test
        first = step % max(1, len(test.labels) - INPUT_IMAGES)
        images = test.images[first : first + INPUT_IMAGES].reshape(-1, mnist_data.SIDE, mnist_data.SIDE, 1)
        tf.summary.image("inputs", images, max_outputs=INPUT_IMAGES)
        tf.summary.scalar("dropout_keep_probability", self._params.dropout_keep)
        network_summaries.variables(model)
        layers = self._layers(model)
        network_summaries.outputs(
            {
                **{f"{name}/pre_activations": layers[name] for name in PRE_ACTIVATIONS},
                "hidden/activations": layers[HIDDEN_ACTIVATION],
                "logits/activations": layers["softmax"],
            }
        )
        if self._logdir is not None:
            self._write_tensors(model, layers, self._logdir)

    def _graph(self, model: keras.Model) -> tf.Graph:
        @tf.function
        def training_step(digits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            outputs = model(digits, training=True)
            with tf.name_scope("cross_entropy"):
                loss = self.loss(labels, outputs)
            with tf.name_scope("accuracy"):
                return loss, self.metrics(labels, outputs)["accuracy"]

        digits = tf.TensorSpec((None, mnist_data.PIXELS), tf.uint8, "digits")
        return training_step.get_concrete_function(digits, tf.TensorSpec((None,), tf.int32, "labels")).graph

    def _layers(self, model: keras.Model) -> dict[str, np.ndarray]:
        """Return each layer's output on the first test digits by the layer's name, and the softmax of the last."""
        outputs: dict[str, np.ndarray] = {}
        values: Any = tf.constant(self._image_set.test.images[:PROJECTED_DIGITS])
        for layer in model.layers:
            values = layer(values)
            outputs[layer.name] = keras.ops.convert_to_numpy(values)
        outputs["softmax"] = tf.nn.softmax(values).numpy()
        return outputs

    def _write_tensors(self, model: keras.Model, layers: Mapping[str, np.ndarray], logdir: str) -> None:
        projector.write_tensor(logdir, WEIGHTS, keras.ops.convert_to_numpy(model.get_layer("hidden").kernel))
        projector.write_tensor(logdir, ACTIVATIONS, layers[HIDDEN_ACTIVATION])
