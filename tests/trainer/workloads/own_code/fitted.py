"""Compiled Keras models, each with much of what `compile` and `fit` allow, and their examples: (inputs, targets) or with sample weights."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.trainer.workloads.own_code.own_steps import (
    Computed,
    Counted,
    Guide,
    Listed,
    Nested,
    Parts,
    Perturbed,
    Tracked,
    Twice,
    Two,
    Unmeasured,
)

EXAMPLES = 64
_RANDOM = np.random.default_rng(0)
POINTS = _RANDOM.normal(size=(EXAMPLES, 4)).astype(np.float32)
SIDES = (POINTS.sum(axis=1) > 0).astype(np.int64)
WEIGHTS = _RANDOM.uniform(0.5, 2, EXAMPLES).astype(np.float32)
# Rows of words of different lengths, padded with 0.
WORDS = np.tile(np.array([[3, 1, 2, 0, 0], [2, 2, 0, 0, 0], [4, 1, 1, 3, 2], [1, 0, 0, 0, 0]], np.int32), (EXAMPLES // 4, 1))

Data = Callable[[], Any]


def points() -> tuple[Any, ...]:
    return POINTS, SIDES


def weighted() -> tuple[Any, ...]:
    return POINTS, SIDES, WEIGHTS


def sums() -> tuple[Any, ...]:
    return POINTS, POINTS[:, :1], WEIGHTS


def unsized() -> tf.data.Dataset:
    """One-hot targets of a width that is not known."""
    targets = np.eye(3, dtype=np.float32)[np.arange(EXAMPLES) % 3]
    examples = tf.data.Dataset.from_tensor_slices((POINTS, targets))
    return examples.map(lambda inputs, target: (inputs, tf.boolean_mask(target, target >= 0)))


def sequences() -> tuple[Any, ...]:
    return WORDS, np.minimum(WORDS, 3)


def both() -> tuple[Any, ...]:
    return (POINTS, POINTS[:, :2]), {"side": SIDES.astype(np.float32)[:, np.newaxis], "first": POINTS[:, :1]}


class Pulled(keras.layers.Layer):
    """Penalizes large inputs, each example's separately."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


class Positives(keras.metrics.Metric):
    """Counts examples of class 1; its result is its variable, as in the docstring of keras.metrics.Metric."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.count = self.add_variable(shape=(), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # noqa: ARG002 - as Keras calls it
        self.count.assign(self.count + keras.ops.sum(keras.ops.cast(y_true, "float32")))

    def result(self) -> Any:
        return self.count


class TwoResults(Positives):
    """Has a dictionary of results."""

    def result(self) -> Any:
        return {"ones": self.count, "halves": self.count / 2}


def _through(kind: Any, *layers: Any) -> keras.Model:
    inputs = outputs = keras.Input((4,))
    for layer in layers:
        outputs = layer(outputs)
    model: keras.Model = kind(inputs, outputs)
    return model


def _classifier(kind: Any = keras.Model, optimizer: Any = None, metrics: Any = ("accuracy",), **options: Any) -> keras.Model:
    model = _through(kind, keras.layers.Dense(6, "tanh", **options), keras.layers.Dense(2, "softmax"))
    model.compile(optimizer or keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=metrics and list(metrics))
    return model


def losses() -> keras.Model:
    """Sample weights, plain and weighted metrics, and each way in which a layer adds to the loss."""
    hidden = keras.layers.Dense(6, "tanh", kernel_regularizer="l2")
    model = _through(keras.Model, hidden, Pulled(), keras.layers.Dense(2, "softmax"))
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"], weighted_metrics=["accuracy"])
    return model


def layers() -> keras.Model:
    """Layers with a state: adapted before, moved by each batch, drawing from a seed; the loss that they add is a sum over the batch."""
    adapted = keras.layers.Normalization()
    adapted.adapt(POINTS)
    hidden = keras.layers.Dense(6, kernel_regularizer="l2", activity_regularizer="l2")
    parts = (hidden, Pulled(), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3, seed=3))
    model = _through(keras.Model, adapted, *parts, keras.layers.Dense(2, "softmax"))
    model.compile(
        keras.optimizers.Adam(0.05), keras.losses.SparseCategoricalCrossentropy(), metrics=["accuracy"], weighted_metrics=["accuracy"]
    )
    return model


def outputs() -> keras.Model:
    """Several inputs and outputs, with a loss, a weight and metrics of each."""
    four, two = keras.Input((4,)), keras.Input((2,))
    hidden = keras.layers.Dense(6, "tanh")(keras.layers.Concatenate()([four, two]))
    heads = {"side": keras.layers.Dense(1, "sigmoid", name="side")(hidden), "first": keras.layers.Dense(1, name="first")(hidden)}
    model = keras.Model([four, two], heads)
    model.compile(
        keras.optimizers.SGD(0.1),
        {"side": "binary_crossentropy", "first": keras.losses.Huber()},
        loss_weights={"side": 0.3, "first": 2.0},
        metrics={"side": ["accuracy", keras.metrics.AUC(name="auc")], "first": "mae"},
    )
    return model


def masked() -> keras.Model:
    """A mask made by an embedding, which an LSTM skips and the loss leaves out; in half precision, by the user's policy."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        parts = [
            keras.Input((5,)),
            keras.layers.Embedding(6, 4, mask_zero=True),
            keras.layers.LSTM(5, return_sequences=True),
            keras.layers.Dense(4, "softmax"),
        ]
        model = keras.Sequential(parts)
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def one_hot() -> keras.Model:
    """Its metrics depend on the width of the targets."""
    model = _through(keras.Model, keras.layers.Dense(3, "softmax"))
    model.compile(keras.optimizers.SGD(0.1), "categorical_crossentropy", metrics=["accuracy", keras.metrics.F1Score("macro")])
    return model


def counting() -> keras.Model:
    return _classifier(metrics=[Positives(name="positives"), TwoResults()])


def scaled() -> keras.Model:
    """A loss scaled for float16, by the user's policy."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return _classifier()
    finally:
        keras.config.set_dtype_policy("float32")


def clipped() -> keras.Model:
    return _classifier(optimizer=keras.optimizers.SGD(1.0, clipnorm=0.1, loss_scale_factor=8.0))


def gathered() -> keras.Model:
    """Gradients of a scaled loss that are accumulated and clipped."""
    return _classifier(optimizer=keras.optimizers.SGD(1.0, clipnorm=0.1, loss_scale_factor=8.0, gradient_accumulation_steps=2))


def overwritten() -> keras.Model:
    return _classifier(optimizer=keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2))


def averaged() -> keras.Model:
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    return _classifier(optimizer=keras.optimizers.AdamW(rate, weight_decay=0.1, use_ema=True, ema_momentum=0.9))


def bounded() -> keras.Model:
    """A constraint beside an optimizer that the trainer has a kernel for."""
    return _classifier(optimizer=keras.optimizers.Adam(0.1), kernel_constraint=keras.constraints.MaxNorm(0.5))


def function() -> keras.Model:
    """As `bounded`, with a loss that is a function and returns a mean; options for speed do not change the results."""
    model = _through(keras.Model, keras.layers.Dense(2, "softmax", kernel_constraint=keras.constraints.MaxNorm(0.5)))

    def loss(targets: Any, predictions: Any) -> Any:
        return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(targets, predictions))

    model.compile(keras.optimizers.Adam(0.1), loss, jit_compile=False, steps_per_execution=3, auto_scale_loss=False)
    return model


def parts(shape: tuple[int, ...] = (4,)) -> keras.Model:
    model = Parts(shape)
    model.compile("sgd")
    return model


def no_input() -> keras.Model:
    return parts(())


def listed() -> keras.Model:
    return _classifier(Listed)


def twice() -> keras.Model:
    return _classifier(Twice, metrics=None)


def nested() -> keras.Model:
    return _classifier(Nested, metrics=None)


def perturbed() -> keras.Model:
    return _classifier(Perturbed, metrics=None)


def two() -> keras.Model:
    return _classifier(Two)


TEXTS = np.array(["good film", "bad film", "good good", "bad"] * (EXAMPLES // 4))
GOOD = np.array([1, 0, 1, 0] * (EXAMPLES // 4), np.float32)


def texts() -> tuple[Any, ...]:
    return TEXTS, GOOD


def _vectorized() -> Any:
    return keras.layers.TextVectorization(output_sequence_length=3, vocabulary=["good", "bad", "film"])


def vectorized_texts() -> tf.data.Dataset:
    """Texts that the pipeline turns into numbers."""
    vectorize = _vectorized()
    return tf.data.Dataset.from_tensor_slices(texts()).map(lambda text, good: (vectorize(text), good))


def reading() -> keras.Model:
    """Texts that the model turns into numbers."""
    text = keras.Input((), dtype="string")
    return _judging(text, _vectorized()(text))


def judging() -> keras.Model:
    numbers = keras.Input((3,))
    return _judging(numbers, numbers)


def _judging(inputs: Any, numbers: Any) -> keras.Model:
    mean = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(10, 4, mask_zero=True)(numbers))
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(mean))
    model.compile(keras.optimizers.Adam(0.1), "binary_crossentropy", metrics=["accuracy"])
    return model


class Moving(keras.Model):
    """Its loss changes a variable that is not trained."""

    def build(self, input_shape: Any) -> None:
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")
        super().build(input_shape)

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True) -> Any:
        self.seen.assign_add(1.0)
        return super().compute_loss(x, y, y_pred, sample_weight, training)


def moving() -> keras.Model:
    return _classifier(Moving)


def summed() -> keras.Model:
    model = _classifier()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(reduction="sum"))
    return model


def partly(kind: Any = keras.Model) -> keras.Model:
    """Only its last layer has a gradient; the optimizer would change others by weight decay."""
    stopped = keras.layers.Lambda(tf.stop_gradient, output_shape=(6,))
    model = _through(kind, keras.layers.Dense(6, "tanh", name="stopped"), stopped, keras.layers.Dense(2, "softmax"))
    model.compile(keras.optimizers.AdamW(0.1, weight_decay=0.5), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def partly_guided() -> keras.Model:
    return partly(Guide)


def unlearned() -> keras.Model:
    """Its loss has no gradient, in a step of its own."""
    model = _through(Guide, keras.layers.Dense(2, "softmax"))
    model.compile(keras.optimizers.SGD(0.1), lambda _, predictions: keras.ops.cast(keras.ops.argmax(predictions), "float32"))
    return model


def plain() -> keras.Model:
    return _classifier()


def guide() -> keras.Model:
    return _classifier(Guide)


def tracked() -> keras.Model:
    model = _through(Tracked, keras.layers.Dense(1))
    model.compile(optimizer=keras.optimizers.Adam(0.05))
    return model


def unmeasured() -> keras.Model:
    model = _through(Unmeasured, keras.layers.Dense(2, "softmax"))
    model.compile(optimizer=keras.optimizers.SGD(0.1))
    return model


def pulled() -> keras.Model:
    model = _through(Unmeasured, Pulled(), keras.layers.Dense(2, "softmax"))
    model.compile(optimizer=keras.optimizers.SGD(0.1))
    return model


class Encoded(keras.layers.Layer):
    """Adds the only loss of its model, as the autoencoders of Keras's guides do."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.encode, self.decode = keras.layers.Dense(2, kernel_regularizer="l2"), keras.layers.Dense(4)

    def call(self, inputs: Any) -> Any:
        decoded = self.decode(self.encode(inputs))
        self.add_loss(keras.ops.mean(keras.ops.square(decoded - inputs)))
        return decoded


def added() -> keras.Model:
    model = keras.Sequential([Encoded()])
    model.compile("sgd")
    return model


def added_never() -> keras.Model:
    model = _through(keras.Model, keras.layers.Dense(2, kernel_regularizer="l2"))
    model.compile("sgd")
    return model


def computed() -> keras.Model:
    return _classifier(Computed, kernel_regularizer="l2")


def counted() -> keras.Model:
    return _classifier(Counted, kernel_regularizer="l2")


MODELS: dict[str, tuple[Callable[[], keras.Model], Data]] = {
    build.__name__: (build, data)
    for build, data in {
        losses: weighted,
        layers: weighted,
        outputs: both,
        masked: sequences,
        one_hot: unsized,
        counting: points,
        scaled: points,
        clipped: points,
        gathered: points,
        overwritten: points,
        averaged: points,
        bounded: points,
        function: points,
        partly: points,
        partly_guided: points,
        unlearned: points,
        plain: points,
        reading: texts,
        judging: vectorized_texts,
        moving: points,
        summed: points,
        guide: points,
        tracked: sums,
        unmeasured: points,
        pulled: points,
        added: points,
        added_never: points,
        computed: points,
        counted: points,
        twice: points,
        nested: points,
        perturbed: points,
        two: points,
        listed: points,
        parts: points,
        no_input: points,
    }.items()
}
