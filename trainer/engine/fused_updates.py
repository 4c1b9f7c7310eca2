"""Applies gradients with a Keras optimizer: by TensorFlow's fused kernel, or only to the rows in use, if the arithmetic is the same.

Keras writes Adam as a dozen operations per variable; ResourceApplyAdam does the same in one. Formula:
keras.optimizers.Adam.update_step and tf.raw_ops.ResourceApplyAdam both compute
m += (g - m)(1 - b1); v += (g^2 - v)(1 - b2); w -= lr sqrt(1 - b2^t)/(1 - b1^t) m / (sqrt(v) + eps).
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer.engine.embeddings import row_updates


def _plain(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether the optimizer does nothing to gradients or variables beyond its update rule."""
    return (
        optimizer.clipnorm is None
        and optimizer.clipvalue is None
        and optimizer.global_clipnorm is None
        and not optimizer.use_ema
        and optimizer.loss_scale_factor is None
        and optimizer.gradient_accumulation_steps is None
        and optimizer.weight_decay is None
    )


def fuses(optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]) -> bool:
    """Return whether `apply` uses the fused kernel for this optimizer."""
    return (
        type(optimizer) is keras.optimizers.Adam
        and not optimizer.amsgrad
        and _plain(optimizer)
        and all(v.dtype == "float32" and v.constraint is None and getattr(v, "overwrite_with_gradient", False) is False for v in variables)
    )


def _tensor(variable: keras.Variable) -> tf.Variable:
    return variable.value


def _adagrad_rows(
    optimizer: keras.optimizers.Adagrad, gradients: Sequence[Any], variables: Sequence[keras.Variable]
) -> tuple[list[Any], list[keras.Variable]]:
    """Update rows by gradients of rows, IndexedSlices, as keras.optimizers.Adagrad.update_step does; return the other gradients and variables.

    A row that occurs twice adds two squares. Keras reads the whole matrix, and adds two tf.cond per variable: for 50 variables they take seconds to trace.
    """
    rule, (rate, count) = row_updates.rule_of(optimizer, ()), row_updates.rate_and_count(optimizer)
    others = []
    for gradient, variable in zip(gradients, variables, strict=True):
        if not isinstance(gradient, tf.IndexedSlices) or variable.constraint is not None:
            others.append((gradient, variable))
            continue
        sums = _tensor(optimizer._accumulators[optimizer._get_variable_index(variable)])  # noqa: SLF001 - as in `apply`
        rows = row_updates.RowHandle(_tensor(variable), {"accumulator": sums}, gradient.indices)
        row_updates.update(rule, optimizer, rows, tf.cast(gradient.values, variable.dtype), rate, count, decays=False)
    return [gradient for gradient, _ in others], [variable for _, variable in others]


def apply(optimizer: keras.optimizers.Optimizer, gradients: Sequence[Any], variables: Sequence[keras.Variable]) -> None:
    """Update `variables` as `optimizer.apply(gradients, variables)` does; the optimizer must be built on them. Without gradients it only counts a step."""
    if type(optimizer) is keras.optimizers.Adagrad and _plain(optimizer) and any(isinstance(g, tf.IndexedSlices) for g in gradients):
        gradients, variables = _adagrad_rows(optimizer, gradients, variables)
    fused = fuses(optimizer, variables)
    if not gradients and not fused:
        optimizer.iterations.assign_add(1)
        return
    if not fused or any(not isinstance(g, tf.Tensor) for g in gradients):
        optimizer.apply(list(gradients), list(variables))
        return
    # Keras takes step t + 1 and the learning rate (a schedule's, too) at step t.
    rate = tf.cast(optimizer.learning_rate, tf.float32)
    count = tf.cast(optimizer.iterations + 1, tf.float32)
    beta_1, beta_2 = (tf.constant(beta, tf.float32) for beta in (optimizer.beta_1, optimizer.beta_2))
    power_1, power_2 = tf.pow(beta_1, count), tf.pow(beta_2, count)
    for variable, gradient in zip(variables, gradients, strict=True):
        index = optimizer._get_variable_index(variable)  # noqa: SLF001 - Keras has no public name for a variable's slots
        with tf.device(_tensor(variable).device):
            tf.raw_ops.ResourceApplyAdam(
                var=_tensor(variable).handle,
                m=_tensor(optimizer._momentums[index]).handle,  # noqa: SLF001
                v=_tensor(optimizer._velocities[index]).handle,  # noqa: SLF001
                beta1_power=power_1,
                beta2_power=power_2,
                lr=rate,
                beta1=beta_1,
                beta2=beta_2,
                epsilon=tf.constant(optimizer.epsilon, tf.float32),
                grad=gradient,
                use_locking=True,
            )
    optimizer.iterations.value.assign_add(1)  # Keras's own assign_add reads, adds and writes: workers would lose counts
