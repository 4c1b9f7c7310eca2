"""A training step that is a user's own code, such as a Keras model's `train_step`: it computes gradients and applies them itself.

The trainer replaces `optimizer.apply`, which the step calls, to take the mean of the gradients of all replicas there.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs

from trainer.engine import global_seed
from trainer.engine.train_config import TrainConfig
from trainer.workloads.errors import WorkloadError
from trainer.workloads.protocol import HasTrainStep, Workload

# This replica's gradients -> their means over all replicas.
MeanGradients = Callable[[list[tf.Tensor]], list[tf.Tensor]]
# Takes gradients, variables and the optimizer's own `apply`.
Apply = Callable[[list[Any], list[Any], Callable[..., Any]], None]
# Calls a function as each replica does.
Run = Callable[[Callable[..., Any], tuple[Any, ...]], Any]

# The reason and the remedy, where a loss has no gradient.
NOTHING_LEARNED = (
    "nothing would be learned; compute the loss from the model's outputs by differentiable operations: argmax, comparisons, casts to integers, "
    "NumPy and tf.stop_gradient have no gradient"
)
_REMEDY = "Compile the model with one optimizer and let a step apply its gradients once"
_NOT_REPLICATED = f"which several replicas cannot follow. {_REMEDY}, or train with strategy single"


def customizations(workload: Workload) -> tuple[str, ...]:
    """Return what a workload customizes of Keras's training, for messages; empty if the engine's step trains it. Call it after `model`."""
    return workload.customizations() if isinstance(workload, HasTrainStep) else ()


class UserStep:
    """Runs a workload's own step, with `optimizer` as the model's; `metrics` names its measures beside the loss.

    With several replicas each step must apply its replica's gradients once, through the model's optimizer, and change trained variables
    by nothing else: replicas would drift apart.
    """

    def __init__(self, workload: HasTrainStep, model: keras.Model, optimizer: keras.optimizers.Optimizer, config: TrainConfig) -> None:
        """Raise WorkloadError if the settings ask for something that only the engine's own step does."""
        self._workload, self._model, self._optimizer = workload, model, optimizer
        self._name = f"train.workload {config.train.workload}"
        self._thread_state = threading.local()
        self.metrics: tuple[str, ...] = ()
        self.without_gradient: tuple[str, ...] = ()  # paths of variables for which it applies none
        unsupported = {"gradients.accumulate": config.train.gradients.accumulate > 1, "jit_compile": config.train.jit_compile}
        for setting in (name for name, is_set in unsupported.items() if is_set):
            raise WorkloadError(
                f"train.{setting} changes the trainer's own training step, and {config.train.workload} has {', '.join(workload.customizations())} of its own; "
                "leave it out"
            )
        self._patch_optimizer()

    def trace(self, batch: Any, run: Run) -> None:
        """Find the names of the step's measures by tracing it once with the specs of a `batch`, (inputs, targets)."""

        def step(inputs: Any, targets: Any) -> tf.Tensor:
            graph = tf.compat.v1.get_default_graph()

            def apply(gradients: list[Any], variables: list[Any], original: Callable[..., Any]) -> None:
                if tf.distribute.get_strategy().num_replicas_in_sync > 1:
                    self._check_outermost(graph)
                original(gradients, variables)

            with self._applying(apply), global_seed.drawing_with(self._model):
                returned = self._workload.train_step(inputs, targets)
            self.metrics = tuple(name for name in returned if name != "loss")
            return returned["loss"]

        tf.function(lambda inputs, targets: run(step, (inputs, targets)), autograph=False).get_concrete_function(*batch)

    def __call__(self, inputs: Any, targets: Any, mean_gradients: MeanGradients | None) -> tf.Tensor:
        """Take a step; return the loss and `metrics` of its batch, float32 [1 + metrics]. `mean_gradients` is None where there is one replica."""
        graph = tf.compat.v1.get_default_graph()
        first = len(graph.get_operations())
        calls: list[range] = []

        def apply(gradients: list[Any], variables: list[Any], original: Callable[..., Any]) -> None:
            if mean_gradients is None:
                original(gradients, variables)
                return
            self._check_outermost(graph)
            if calls:
                raise self._error(f"applies gradients more than once, {_NOT_REPLICATED}")
            before = len(graph.get_operations())
            original(mean_gradients([tf.convert_to_tensor(gradient) for gradient in gradients]), variables)
            calls.append(range(before, len(graph.get_operations())))

        with self._applying(apply):
            returned = self._workload.train_step(inputs, targets)
        if mean_gradients is not None:
            if not calls:
                raise self._error(f"applies no gradients by self.optimizer outside of tf.functions of its own, {_NOT_REPLICATED}")
            self._check_written(graph, first, calls[0])
        return tf.stack([returned[name] for name in ("loss", *self.metrics)])

    @contextmanager
    def _applying(self, apply: Apply) -> Iterator[None]:
        """Call `apply` in place of the optimizer's own while a step is traced in this thread."""
        self._thread_state.apply, self._thread_state.scaled = apply, False
        try:
            yield
        finally:
            del self._thread_state.apply, self._thread_state.scaled

    def _patch_optimizer(self) -> None:
        """Replace `apply` and `scale_loss` of the optimizer, permanently: replicas of a machine are traced in threads that take turns."""
        optimizer, thread_state = self._optimizer, self._thread_state
        original, scale = optimizer.apply, optimizer.scale_loss

        def apply(grads: Sequence[Any], trainable_variables: Any = None) -> None:
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and not thread_state.scaled:
                raise self._error("does not scale the loss for mixed_float16. Take the gradients of self.optimizer.scale_loss(loss)")
            variables = optimizer._trainable_variables if trainable_variables is None else list(trainable_variables)  # noqa: SLF001 - as Keras does
            pairs = list(zip(grads, variables, strict=True))
            if pairs and all(gradient is None for gradient in grads):
                raise self._error(f"applies gradients that are all None: {NOTHING_LEARNED}")
            missing = [str(getattr(variable, "path", variable.name)) for gradient, variable in pairs if gradient is None]
            self.without_gradient = tuple(dict.fromkeys([*self.without_gradient, *missing]))
            present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
            thread_state.apply([gradient for gradient, _ in present], [variable for _, variable in present], original)

        def scale_loss(loss: tf.Tensor) -> tf.Tensor:
            thread_state.scaled = True
            return scale(loss)

        def refuse(*_: Any, **__: Any) -> None:
            raise self._error(
                f"applies gradients with another optimizer than the compiled one, and its state would not be saved. {_REMEDY}"
            )

        # Bypasses Keras, which would track them as a part of the optimizer.
        object.__setattr__(optimizer, "apply", apply)
        object.__setattr__(optimizer, "scale_loss", scale_loss)
        for layer in self._model._flatten_layers():  # noqa: SLF001 - the public `layers` are those of one level
            for found in _optimizers(list(vars(layer).values())):
                if found is not optimizer:
                    object.__setattr__(found, "apply", refuse)

    def _check_outermost(self, graph: Any) -> None:
        if tf.compat.v1.get_default_graph() is not graph:
            raise self._error(f"applies gradients inside of a tf.cond, a tf.while_loop or a tf.function of its own, {_NOT_REPLICATED}")

    def _check_written(self, graph: Any, first: int, applying: range) -> None:
        trained = {id(graph.capture(v.value.handle)): v for v in self._model.trainable_variables}
        for index, operation in enumerate(graph.get_operations()[first:], first):
            if index not in applying:
                _, written = get_read_write_resource_inputs(operation)
                for variable in (trained[id(tensor)] for tensor in written if id(tensor) in trained):
                    raise self._error(f"changes {variable.path} by other means than self.optimizer, {_NOT_REPLICATED}")

    def _error(self, problem: str) -> WorkloadError:
        return WorkloadError(f"{self._name}: {type(self._model).__name__}.train_step {problem}")


def _optimizers(value: Any) -> Iterator[keras.optimizers.Optimizer]:
    """Yield the optimizers that an attribute holds, in lists and dicts as well."""
    if isinstance(value, keras.optimizers.Optimizer):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _optimizers(part)
