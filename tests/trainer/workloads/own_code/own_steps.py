"""Keras models with a training step, a loss or metrics of their own."""

from typing import Any

import keras
import tensorflow as tf


class Guide(keras.Model):
    """As Keras's guide "Customizing what happens in fit() with TensorFlow" has it."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        trainable_vars = self.trainable_variables
        gradients = tape.gradient(loss, trainable_vars)
        self.optimizer.apply(gradients, trainable_vars)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


class Tracked(keras.Model):
    """The guide's second example: its own loss, metrics and evaluation, with sample weights."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y, sample_weight = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred, sample_weight=sample_weight)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y, sample_weight = data
        y_pred = self(x, training=False)
        self.loss_tracker.update_state(self.loss_fn(y, y_pred, sample_weight=sample_weight))
        self.mae_metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {m.name: m.result() for m in self.metrics}

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker, self.mae_metric]


class Unmeasured(keras.Model):
    """Has a loss only in its step."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, self(x, training=True)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class Computed(keras.Model):
    """Its loss looks at the inputs, too."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True) -> Any:
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + 0.01 * keras.ops.mean(keras.ops.square(x) * keras.ops.max(y_pred, axis=-1, keepdims=True))


class Counted(Computed):
    """As Computed, with metrics beside those of `compile`: one that its loss counts, and one made of others."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sharpness = keras.metrics.Mean(name="sharpness")

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True) -> Any:
        self.sharpness.update_state(keras.ops.max(y_pred, axis=-1))
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**results, "error": 1 - results["accuracy"]}


class _Stepping(keras.Model):
    def gradients(self, data: Any) -> tuple[Any, Any, list[Any]]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        return loss, *(list(part) for part in (tape.gradient(loss, self.trainable_variables), self.trainable_variables))


class Twice(_Stepping):
    """Applies gradients to each layer by itself."""

    def train_step(self, data: Any) -> dict[str, Any]:
        loss, gradients, variables = self.gradients(data)
        self.optimizer.apply(gradients[:2], variables[:2])
        self.optimizer.apply(gradients[2:], variables[2:])
        return {"loss": loss}


class Perturbed(_Stepping):
    """Sharpness-aware: takes its gradients at nearby weights, at which the loss of its own batch is higher."""

    def train_step(self, data: Any) -> dict[str, Any]:
        loss, gradients, variables = self.gradients(data)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_add(0.05 * gradient)
        _, gradients_nearby, _ = self.gradients(data)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(0.05 * gradient)
        self.optimizer.apply(gradients_nearby, variables)
        return {"loss": loss}


class Nested(Perturbed):
    """As Perturbed, in a function of its own."""

    @tf.function
    def train_step(self, data: Any) -> dict[str, Any]:
        return Perturbed.train_step(self, data)


class Two(_Stepping):
    """Has another optimizer beside the compiled one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.other = keras.optimizers.Adam()

    def train_step(self, data: Any) -> dict[str, Any]:
        loss, gradients, variables = self.gradients(data)
        self.other.apply(gradients, variables)
        return {"loss": loss}


class Listed(_Stepping):
    """Has other optimizers in a list."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.others = {"all": [keras.optimizers.Adam()]}

    def train_step(self, data: Any) -> dict[str, Any]:
        loss, gradients, variables = self.gradients(data)
        self.others["all"][0].apply(gradients, variables)
        return {"loss": loss}


class Parts(keras.Model):
    """Has no `call`: its steps call its parts, as in Keras's example of a variational autoencoder."""

    def __init__(self, shape: tuple[int, ...] = (4,)) -> None:
        super().__init__()
        self.encoder = keras.Sequential([keras.Input(shape), keras.layers.Dense(2)]) if shape else keras.layers.Dense(2)
        self.decoder = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4)])
        self.mean = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [self.mean]

    def loss_of(self, data: Any) -> Any:
        return tf.reduce_mean(tf.square(data[0] - self.decoder(self.encoder(data[0]))))

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = self.loss_of(data)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights, strict=True))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}

    def test_step(self, data: Any) -> dict[str, Any]:
        self.mean.update_state(self.loss_of(data))
        return {"loss": self.mean.result()}
