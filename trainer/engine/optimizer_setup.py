"""Applies the train settings to a workload's model and optimizer."""

import keras
import tensorflow as tf

from trainer.engine import weight_decay
from trainer.engine.optimizer_copy import copied
from trainer.engine.schedules import constant_rate, described, schedule
from trainer.engine.train_config import TrainConfig
from trainer.strategies import STRATEGIES
from trainer.workloads.errors import WorkloadError
from trainer.workloads.protocol import Agent, HasOptimizerFor, Workload

# settings.Gradients -> the argument of Keras's optimizers.
_CLIPS = {"clip_value": "clipvalue", "clip_norm": "clipnorm", "clip_global_norm": "global_clipnorm"}


# Option of an optimizer that acts only in some steps -> the kinds of strategies on which TensorFlow does not support it, and the remedy.
_UNSUPPORTED_OPTIONS = {
    "gradient_accumulation_steps": (("on_devices", "variables_on_ps"), "leave it out and set train.gradients.accumulate"),
    "ema_overwrite_frequency": (("on_devices",), "leave it out: evaluations and exports use the averages of use_ema anyway"),
}
_NOT_ON_SERVERS = "and parameter servers do not do that; set mixed_bfloat16, which needs no scaling"


def prepare(config: TrainConfig) -> None:
    """Set seeds, the precision of layers that are created from now on, and whether operations must be deterministic.

    A policy that the user's code has set on import stays, unless the settings ask for a mixed one.

    Raises:
        WorkloadError: that policy requires scaling of the loss, which the strategy does not support.
    """
    keras.utils.set_random_seed(config.seed)
    if config.train.precision != "float32":
        keras.config.set_dtype_policy(config.train.precision)
    elif _scales_loss() and STRATEGIES[config.strategy].variables_on_ps:
        raise WorkloadError(
            f"the code of {config.train.workload} sets Keras's policy mixed_float16, which scales the loss step by step, {_NOT_ON_SERVERS}"
        )
    if config.train.deterministic:
        tf.config.experimental.enable_op_determinism()


def check_precision(model: keras.Model, config: TrainConfig) -> None:
    """Raise WorkloadError if the settings ask for a mixed precision, and no layer that learns has it."""
    precision = config.train.precision
    learning = [layer for layer in model._flatten_layers() if layer._trainable_variables]  # noqa: SLF001 - Keras has no public way to either
    if precision == "float32" or not learning:
        return
    if not any(layer.compute_dtype == keras.DTypePolicy(precision).compute_dtype for layer in learning):
        raise WorkloadError(
            f"train.precision is {precision}, but no layer with weights of the model {model.name!r} has it: {learning[0].name!r} computes in "
            f"{learning[0].compute_dtype}. Make the layers in the model function, without keras.utils.clear_session, which resets the precision, "
            "and without a dtype or a policy of their own; or leave train.precision out"
        )


def optimizer(workload: Workload | Agent, config: TrainConfig, examples_per_step: int) -> keras.optimizers.Optimizer:
    """Return the workload's optimizer with the learning rate, clipping and loss scaling that the settings ask for.

    Workloads that implement `HasOptimizerFor` get `examples_per_step`, of all replicas together.

    Raises:
        WorkloadError: the optimizer has a schedule of its own and the settings' has no `initial`, or it has an option, or scales the loss,
            and the strategy does not support that.
    """
    given = workload.optimizer_for(examples_per_step) if isinstance(workload, HasOptimizerFor) else workload.optimizer()
    own, scale = given, {}
    if isinstance(given, keras.optimizers.LossScaleOptimizer):  # the workload's, or that of Keras's compile for a model in float16
        own, scale = given.inner_optimizer, {name: getattr(given, name) for name in ("initial_scale", "dynamic_growth_steps")}
    scales = bool(scale) or _scales_loss() or config.train.precision == "mixed_float16"
    if scales and STRATEGIES[config.strategy].variables_on_ps:
        raise WorkloadError(
            f"{config.train.workload} scales the loss step by step (the policy mixed_float16, or a LossScaleOptimizer), {_NOT_ON_SERVERS}"
        )
    for setting, (traits, remedy) in _UNSUPPORTED_OPTIONS.items():
        unsupported = any(getattr(STRATEGIES[config.strategy], trait) for trait in traits)
        if unsupported and (value := getattr(own, setting)):
            raise WorkloadError(
                f"the optimizer of {config.train.workload} has {setting}={value}, which acts only in some steps, and TensorFlow does not support "
                f"that on {config.strategy}; {remedy}"
            )
    changes: dict[str, object] = {}
    for clip, keras_name in _CLIPS.items():
        limit = getattr(config.train.gradients, clip)
        if limit is not None:
            changes |= {**dict.fromkeys(_CLIPS.values()), keras_name: limit}
    if config.train.learning_rate is not None:
        changes["learning_rate"] = schedule(config.train.learning_rate, _initial_rate(own, config), config.steps)
    # One that was created outside the strategy's scope, when a module was imported, would count each replica's step.
    outside = not tf.distribute.get_strategy().extended.variable_created_in_scope(own._iterations.value)  # noqa: SLF001 - `iterations` may be computed
    if changes or outside:
        changed = copied(own, **changes)
        weight_decay.keep_excluded(own, changed)
        own = changed
    return keras.optimizers.LossScaleOptimizer(own, **scale) if scales else own


def _scales_loss() -> bool:
    """Return whether models that are created now compute in float16: without a scaled loss its gradients would underflow."""
    return bool(keras.config.dtype_policy().name == "mixed_float16")


def _initial_rate(own: keras.optimizers.Optimizer, config: TrainConfig) -> float:
    settings = config.train.learning_rate
    if settings is not None and settings.initial is not None:
        return settings.initial
    if (rate := constant_rate(own)) is None:
        message = (
            f"train.learning_rate gives no `initial`, and the optimizer of {config.train.workload} has a schedule of its own "
            f"({described(own)}), no rate to start from; add `initial`"
        )
        raise WorkloadError(message)
    return rate
