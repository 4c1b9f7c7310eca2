"""Updates of the rows that a step used, in place, by the formulas of Keras's optimizers.

SGD without momentum and Adagrad do the same as the dense optimizer: a row without a gradient does not change. All others are lazy: slots
and weight decay of a row change only in the steps that use it. Sums are updated by atomic additions, so that workers that update a row at the
same time lose no update; other slots are read and written, as Keras's own asynchronous updates do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from trainer.workloads.errors import WorkloadError


class RowHandle:
    """A handle by which to read and change some rows of a variable and of its slots, each [_, dimension].

    `indices` are distinct, unless a rule only adds, as that of Adagrad.
    """

    def __init__(self, variable: tf.Variable, slots: Mapping[str, tf.Variable], indices: tf.Tensor) -> None:
        self._variables, self._indices = {"": variable, **slots}, indices

    def get(self, slot: str = "") -> tf.Tensor:
        """Return rows of a slot, or of the variable itself without a name."""
        variable = self._variables[slot]
        return tf.raw_ops.ResourceGather(resource=variable.handle, indices=self._indices, dtype=variable.dtype)

    def put(self, slot: str, rows: tf.Tensor) -> tf.Tensor:
        """Replace rows; return them."""
        tf.raw_ops.ResourceScatterUpdate(resource=self._variables[slot].handle, indices=self._indices, updates=rows)
        return rows

    def add(self, rows: tf.Tensor, slot: str = "") -> None:
        """Add to rows."""
        tf.raw_ops.ResourceScatterAdd(resource=self._variables[slot].handle, indices=self._indices, updates=rows)


# Takes an optimizer, rows, their gradients, the learning rate and the number of this step from 1 on, a float.
Apply = Callable[[Any, RowHandle, tf.Tensor, tf.Tensor, tf.Tensor], None]


@dataclass(frozen=True)
class Rule:
    """How an optimizer updates rows: its `slots`, by Keras's names, with their initial values; see Keras for the formulas."""

    slots: Callable[[Any], dict[str, float]]
    apply: Apply


def _sgd(optimizer: Any, rows: RowHandle, gradient: tf.Tensor, rate: tf.Tensor, _: tf.Tensor) -> None:
    step = -rate * gradient
    if optimizer.momentum:
        moved = rows.put("momentum", optimizer.momentum * rows.get("momentum") + step)
        step = optimizer.momentum * moved + step if optimizer.nesterov else moved
    rows.add(step)


def _adagrad(optimizer: Any, rows: RowHandle, gradient: tf.Tensor, rate: tf.Tensor, _: tf.Tensor) -> None:
    rows.add(tf.square(gradient), "accumulator")
    rows.add(-rate * gradient / tf.sqrt(rows.get("accumulator") + optimizer.epsilon))


def _ftrl(optimizer: Any, rows: RowHandle, gradient: tf.Tensor, rate: tf.Tensor, _: tf.Tensor) -> None:
    power = -optimizer.learning_rate_power
    values, before = rows.get(), rows.get("accumulator")
    after = before + tf.square(gradient)
    shrunk = gradient + 2 * optimizer.l2_shrinkage_regularization_strength * values
    moved = shrunk - (tf.pow(after, power) - tf.pow(before, power)) / rate * values
    linear = rows.put("linear", rows.get("linear") + moved)
    l2 = optimizer.l2_regularization_strength + optimizer.beta / (2.0 * rate)
    l1 = optimizer.l1_regularization_strength
    rows.put("", (tf.clip_by_value(linear, -l1, l1) - linear) / (tf.pow(after, power) / rate + 2 * l2))
    rows.put("accumulator", after)


def _rmsprop(optimizer: Any, rows: RowHandle, gradient: tf.Tensor, rate: tf.Tensor, _: tf.Tensor) -> None:
    rho = optimizer.rho
    scale = rows.put("velocity", rho * rows.get("velocity") + (1 - rho) * tf.square(gradient))
    if optimizer.centered:
        scale -= tf.square(rows.put("average_gradient", rho * rows.get("average_gradient") + (1 - rho) * gradient))
    step = rate * gradient / tf.sqrt(scale + optimizer.epsilon)
    if optimizer.momentum > 0:
        step = rows.put("momentum", optimizer.momentum * rows.get("momentum") + step)
    rows.add(-step)


def _adam(optimizer: Any, rows: RowHandle, gradient: tf.Tensor, rate: tf.Tensor, count: tf.Tensor) -> None:
    beta_1, beta_2 = (tf.constant(beta, gradient.dtype) for beta in (optimizer.beta_1, optimizer.beta_2))
    alpha = rate * tf.sqrt(1 - tf.pow(beta_2, count)) / (1 - tf.pow(beta_1, count))
    momentum, velocity = rows.get("momentum"), rows.get("velocity")
    momentum = rows.put("momentum", momentum + (gradient - momentum) * (1 - beta_1))
    velocity = rows.put("velocity", velocity + (tf.square(gradient) - velocity) * (1 - beta_2))
    if optimizer.amsgrad:
        velocity = rows.put("velocity_hat", tf.maximum(rows.get("velocity_hat"), velocity))
    rows.add(-alpha * momentum / (tf.sqrt(velocity) + optimizer.epsilon))


_ADAM = Rule(lambda o: dict.fromkeys(["momentum", "velocity", *(["velocity_hat"] if o.amsgrad else [])], 0.0), _adam)
_RULES: dict[type[keras.optimizers.Optimizer], Rule] = {
    keras.optimizers.SGD: Rule(lambda o: {"momentum": 0.0} if o.momentum else {}, _sgd),
    keras.optimizers.Adagrad: Rule(lambda o: {"accumulator": o.initial_accumulator_value}, _adagrad),
    keras.optimizers.Ftrl: Rule(lambda o: {"accumulator": o.initial_accumulator_value, "linear": 0.0}, _ftrl),
    keras.optimizers.RMSprop: Rule(
        lambda o: dict.fromkeys(
            ["velocity", *(["momentum"] if o.momentum > 0 else []), *(["average_gradient"] if o.centered else [])], 0.0
        ),
        _rmsprop,
    ),
    keras.optimizers.Adam: _ADAM,
    keras.optimizers.AdamW: _ADAM,
}
# Options of an optimizer beyond its formula that are not supported for rows -> why.
_UNSUPPORTED_OPTIONS = {
    "use_ema": "moving averages (use_ema) read every row in every step",
    "gradient_accumulation_steps": "it accumulates gradients of its own (gradient_accumulation_steps)",
    "loss_scale_factor": "it scales the loss (loss_scale_factor)",
    "clipnorm": "it clips the gradient of each variable by its norm (clipnorm); global_clipnorm and clipvalue are possible",
}


def unsupported(optimizer: keras.optimizers.Optimizer) -> list[str]:
    """Return why an optimizer cannot update rows; nothing if it can."""
    reasons = [why for name, why in _UNSUPPORTED_OPTIONS.items() if getattr(optimizer, name, None)]
    if type(optimizer) not in _RULES:
        supported = ", ".join(kind.__name__ for kind in _RULES)
        reasons.append(f"expected one of Keras's {supported}, not {type(optimizer).__name__}")
    return reasons


def rule_of(optimizer: keras.optimizers.Optimizer, layers: Sequence[str]) -> Rule:
    """Return the rule of an optimizer. `layers` are the names of those whose rows it is to update, for messages.

    Raises:
        WorkloadError: there is none.
    """
    if reasons := unsupported(optimizer):
        raise WorkloadError(
            f"the optimizer {type(optimizer).__name__} cannot update the rows of large embedding layers on parameter servers ({', '.join(layers)}): "
            f"{'; '.join(reasons)}. Use another, or keep the layers whole with train.embeddings.whole"
        )
    return _RULES[type(optimizer)]


def decays(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether the optimizer's weight decay applies to a table, by the name of Keras's variable (see exclude_from_weight_decay)."""
    excluded = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    return bool(optimizer.weight_decay) and not (excluded and excluded.search("embeddings"))


def rate_and_count(optimizer: keras.optimizers.Optimizer) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the learning rate of the next step, and its number from 1 on, as Apply takes them; on the caller's device."""
    return tf.convert_to_tensor(optimizer.learning_rate), tf.cast(optimizer.iterations.value.read_value() + 1, tf.float32)


def update(
    rule: Rule,
    optimizer: keras.optimizers.Optimizer,
    rows: RowHandle,
    gradient: tf.Tensor,
    rate: tf.Tensor,
    count: tf.Tensor,
    *,
    decays: bool,
) -> None:
    """Update rows by their gradients, [_, dimension], after the decay of weights. For the rest see Apply."""
    rate = tf.cast(rate, gradient.dtype)
    if decays:
        rows.add(-rate * optimizer.weight_decay * rows.get())
    rule.apply(optimizer, rows, gradient, rate, tf.cast(count, gradient.dtype))


def clipped(
    optimizer: keras.optimizers.Optimizer, dense: Sequence[tf.Tensor], rows: Sequence[tf.Tensor]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Return the gradients of a step, clipped by the optimizer's options: by value, or by the norm of all together.

    The optimizer then clips the dense gradients again, which changes nothing: their values, or their norm, are within the limit already.
    """
    limit = optimizer.clipvalue
    if limit:
        return list(dense), [tf.clip_by_value(one, -limit, limit) for one in rows]
    if not optimizer.global_clipnorm:
        return list(dense), list(rows)
    norm = tf.linalg.global_norm([*dense, *rows])
    scale = optimizer.global_clipnorm / tf.maximum(norm, optimizer.global_clipnorm)
    return [g * tf.cast(scale, g.dtype) for g in dense], [r * tf.cast(scale, r.dtype) for r in rows]


def deduplicated(gradient: Any) -> tf.IndexedSlices:
    """Return the gradient of a matrix as gradients of the rows for which it is not 0, each row once."""
    if not isinstance(gradient, tf.IndexedSlices):  # the model uses the whole matrix, or several batches make a step
        used = tf.where(tf.reduce_any(tf.not_equal(gradient, 0), 1))[:, 0]
        return tf.IndexedSlices(tf.gather(gradient, used), used, tf.shape(gradient))
    rows, inverse = tf.unique(gradient.indices)
    return tf.IndexedSlices(tf.math.unsorted_segment_sum(gradient.values, inverse, tf.size(rows)), rows, gradient.dense_shape)
