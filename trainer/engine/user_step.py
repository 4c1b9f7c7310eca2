"""A training step that is a user's own code, such as a Keras model's `train_step`: it computes gradients and applies them itself.

The trainer steps in where the step calls `optimizer.apply`: there gradients of all replicas become their mean.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs

from trainer.engine.job import Job
from trainer.workloads.errors import WorkloadError
from trainer.workloads.protocol import Stepping, Workload

# Of gradients of this replica the means over all.
TcpAllReduce = Callable[[list[tf.Tensor]], list[tf.Tensor]]
# Of gradients, variables and the optimizer's own `apply`.
Apply = Callable[[list[Any], Any, Callable[..., Any]], None]
# Calls a function as each replica does.
Run = Callable[[Callable[..., Any], tuple[Any, ...]], Any]

_ONCE = "Compile the model with one optimizer and let a step apply its gradients once"
_SEVERAL = f"which several replicas cannot follow. {_ONCE}, or train with strategy single"


def own_steps(workload: Workload) -> tuple[str, ...]:
    """Return what a workload's own steps are called, nothing where the engine's step trains it. It must have made its model."""
    return workload.own_steps() if isinstance(workload, Stepping) else ()


class UserStep:
    """Takes a workload's own step, with `optimizer` as the model's; `metrics` names what it measures beside the loss.

    With several replicas each step must apply gradients of its replica once, through the model's optimizer, and leave what is
    trained alone otherwise: replicas would drift apart.
    """

    def __init__(self, workload: Stepping, model: keras.Model, optimizer: keras.optimizers.Optimizer, job: Job) -> None:
        """Raise WorkloadError where the settings ask for what only the engine's own step does."""
        self._workload, self._model, self._optimizer, self._seed = workload, model, optimizer, job.seed
        self._name = f"train.workload {job.train.workload}"
        self._thread_state = threading.local()
        self.metrics: tuple[str, ...] = ()
        asked = {"gradients.accumulate": job.train.gradients.accumulate > 1, "jit_compile": job.train.jit_compile}
        for setting in (name for name, wanted in asked.items() if wanted):
            raise WorkloadError(
                f"train.{setting} changes the trainer's own training step, and {job.train.workload} has {', '.join(workload.own_steps())} of its own; "
                "leave it out"
            )
        self._patch_optimizer()

    def trace(self, batch: Any, run: Run) -> None:
        """Find out what the step measures, by tracing it once on the form of a `batch`, (inputs, targets)."""

        def step(inputs: Any, targets: Any) -> tf.Tensor:
            graph = tf.compat.v1.get_default_graph()

            def apply(gradients: list[Any], variables: Any, original: Callable[..., Any]) -> None:
                if tf.distribute.get_strategy().num_replicas_in_sync > 1:
                    self._check_outermost(graph)
                original(gradients, variables)

            with self._applying(apply):
                returned = self._workload.train_step(inputs, targets)
            self.metrics = tuple(name for name in returned if name != "loss")
            return returned["loss"]

        tf.function(lambda inputs, targets: run(step, (inputs, targets)), autograph=False).get_concrete_function(*batch)

    def __call__(self, inputs: Any, targets: Any, exchange: TcpAllReduce | None, task: int = 0) -> tf.Tensor:
        """Take a step; return the loss and `metrics` of its batch, float32 [1 + metrics].

        `exchange` is None where there is one replica; `task` is the index of this process among several.
        """
        graph = tf.compat.v1.get_default_graph()
        graph.seed = self._seed + task  # of tf.random: replicas draw different numbers
        first = len(graph.get_operations())
        calls: list[range] = []

        def apply(gradients: list[Any], variables: Any, original: Callable[..., Any]) -> None:
            if exchange is None:
                original(gradients, variables)
                return
            self._check_outermost(graph)
            if calls:
                raise self._refused(f"applies gradients more than once, {_SEVERAL}")
            before = len(graph.get_operations())
            present = [index for index, one in enumerate(gradients) if one is not None]
            means = exchange([tf.convert_to_tensor(gradients[index]) for index in present])
            by_index = dict(zip(present, means, strict=True))
            original([by_index.get(index) for index in range(len(gradients))], variables)
            calls.append(range(before, len(graph.get_operations())))

        with self._applying(apply):
            returned = self._workload.train_step(inputs, targets)
        if exchange is not None:
            if not calls:
                raise self._refused(f"applies no gradients by self.optimizer outside of tf.functions of its own, {_SEVERAL}")
            self._check_written(graph, first, calls[0])
        return tf.stack([returned[name] for name in ("loss", *self.metrics)])

    @contextmanager
    def _applying(self, apply: Apply) -> Iterator[None]:
        """Let `apply` have what the optimizer is to apply while a step is traced in this thread."""
        self._thread_state.apply, self._thread_state.scaled = apply, False
        try:
            yield
        finally:
            del self._thread_state.apply, self._thread_state.scaled

    def _patch_optimizer(self) -> None:
        """Step in where gradients are applied, for good: replicas of a machine are traced in threads that take turns."""
        optimizer, thread_state = self._optimizer, self._thread_state
        original, scale = optimizer.apply, optimizer.scale_loss

        def apply(grads: Sequence[Any], trainable_variables: Any = None) -> None:
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and not thread_state.scaled:
                raise self._refused("does not scale the loss for mixed_float16. Take the gradients of self.optimizer.scale_loss(loss)")
            thread_state.apply(list(grads), trainable_variables, original)

        def scale_loss(loss: tf.Tensor) -> tf.Tensor:
            thread_state.scaled = True
            return scale(loss)

        def foreign(*_: Any, **__: Any) -> None:
            raise self._refused(
                f"applies gradients with another optimizer than the compiled one, and its state would not be saved. {_ONCE}"
            )

        # Past Keras, which would track them as a part of the optimizer.
        object.__setattr__(optimizer, "apply", apply)
        object.__setattr__(optimizer, "scale_loss", scale_loss)
        for layer in self._model._flatten_layers():  # noqa: SLF001 - the public `layers` are those of one level
            for one in _optimizers(list(vars(layer).values())):
                if one is not optimizer:
                    object.__setattr__(one, "apply", foreign)

    def _check_outermost(self, graph: Any) -> None:
        if tf.compat.v1.get_default_graph() is not graph:
            raise self._refused(f"applies gradients inside of a tf.cond, a tf.while_loop or a tf.function of its own, {_SEVERAL}")

    def _check_written(self, graph: Any, first: int, applying: range) -> None:
        trained = {id(graph.capture(v.value.handle)): v for v in self._model.trainable_variables}
        for index, operation in enumerate(graph.get_operations()[first:], first):
            if index not in applying:
                _, written = get_read_write_resource_inputs(operation)
                for variable in (trained[id(one)] for one in written if id(one) in trained):
                    raise self._refused(f"changes {variable.path} by other means than self.optimizer, {_SEVERAL}")

    def _refused(self, what: str) -> WorkloadError:
        return WorkloadError(f"{self._name}: {type(self._model).__name__}.train_step {what}")


def _optimizers(value: Any) -> Iterator[keras.optimizers.Optimizer]:
    """Yield the optimizers that an attribute holds, in lists and dicts as well."""
    if isinstance(value, keras.optimizers.Optimizer):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _optimizers(one)
