"""A compiled Keras model as a workload: loss, optimizer and metrics are those of its `compile`; its module has the data."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer import user_errors
from trainer.error_line import error_line
from trainer.workloads.class_weight import ClassWeight
from trainer.workloads.errors import WorkloadError
from trainer.workloads.keras_step import KerasSteps, build, customizations, flatten, overrides
from trainer.workloads.module_forms import CLASS_WEIGHT
from trainer.workloads.protocol import Shard, StateMapping
from trainer.workloads.user_call import CallArguments, call, described
from trainer.workloads.user_callbacks import CALLBACKS, UserCallbacks
from trainer.workloads.user_data import UserData

# Called only by `fit` and `evaluate`.
_IGNORED = ("fit", "evaluate", "make_train_function", "make_test_function")
# Errors of a model that does not fit its data: Keras's about inputs and targets, and TensorFlow's about targets, in a graph or an eager operation.
_SHAPE_MISMATCH = re.compile(
    r"is incompatible with the layer: |has incompatible shape|Missing data for input |expects \d+ (named )?input|`output` must have the same shape|"
    r"`output` must have rank|Dimensions must be equal|Incompatible shapes: .*\[Op:"
)


class KerasWorkload:
    """A compiled Keras model, or a function that returns one, as a workload.

    While training, a metric is computed for each batch, and progress shows the mean. In an evaluation a metric is computed
    over the whole held-out set, as in Keras's `evaluate`, which also suits metrics such as AUC (`held_out_metrics`).
    """

    def __init__(self, source: Any, definitions: Mapping[str, Any], arguments: CallArguments) -> None:
        self._source, self._arguments = source, arguments
        self.callbacks = UserCallbacks(definitions.get(CALLBACKS), arguments)
        weight = definitions.get(CLASS_WEIGHT)
        self._train = UserData(
            definitions["train_data"], arguments, "train_data", None if weight is None else ClassWeight(weight, arguments)
        )
        self._held_out = UserData(definitions["eval_data"], arguments, "eval_data", training=self._train)
        self._model: keras.Model | None = None
        self._has_own_loss = False
        self._steps: KerasSteps | None = None
        self._compiled_metrics: _CompiledMetrics | None = None

    def model(self) -> keras.Model:
        """See Workload.model."""
        name = f"train.workload {self._arguments.workload}"
        model = call(self._source, self._arguments) if not isinstance(self._source, keras.Model) else self._source
        if not isinstance(model, keras.Model):
            raise WorkloadError(f"{name}: {described(self._source)} returned {type(model).__name__}; expected a compiled keras.Model")
        _check_fit(model, name)
        self._model = model
        if not model.built:
            self._build(model, name)
        _check_loss(model, lambda: self._train.first(1)[0], name)
        self._has_own_loss = overrides(model, "compute_loss")
        if self._has_own_loss or self.customizations():
            build(model, self._data(*self._train.first(1)), metrics=bool(self.customizations()))
        return model

    def _build(self, model: keras.Model, name: str) -> None:
        if overrides(model, "call"):
            inputs, _ = self._train.first(1)
            model(inputs)
            return
        # The model's own steps call its parts, as in Keras's example of a variational autoencoder.
        unbuilt = [layer.name for layer in model._flatten_layers(include_self=False) if not layer.built]  # noqa: SLF001
        if unbuilt or not self.customizations():
            raise WorkloadError(
                f"{name}: {type(model).__name__} has no `call`"
                + (f", and its part {unbuilt[0]} is not built" if unbuilt else "")
                + "; define `call`, or a train_step that calls parts each of which has an input shape (keras.Input)"
            )
        model.built = True

    def optimizer(self) -> keras.optimizers.Optimizer:
        """See Workload.optimizer."""
        return self._built_model().optimizer

    def loss(self, targets: Any, outputs: Any) -> tf.Tensor:
        """See Workload.loss: the sum of the outputs' losses, each times its weight; 0 if only layers add losses."""
        loss = self._built_model()._compile_loss  # noqa: SLF001 - Keras has no public name for the loss without the model's own
        if loss is None:
            return tf.constant(0.0)
        labels, weights = self._split_weights(targets)
        if not loss.built:
            with tf.init_scope():
                loss(*self._dummy_batch(labels, outputs, weights))
        # Keras tracks each output's loss in variables, which a worker of parameter_server does not have.
        trackers = [(v, tf.zeros(v.shape, v.dtype)) for v in loss.variables]
        with keras.StatelessScope(state_mapping=trackers):
            return loss(labels, outputs, weights)

    def total_loss(
        self, batch: tuple[Any, Any], outputs: Any, layer_losses: Sequence[tf.Tensor], state_mapping: StateMapping, *, training: bool
    ) -> tf.Tensor:
        """See HasTotalLoss.total_loss: the loss as in `fit` and `evaluate`."""
        inputs, targets = batch
        if not self._has_own_loss:
            return tf.add_n([self.loss(targets, outputs), *(tf.reduce_sum(tf.cast(one, tf.float32)) for one in layer_losses)])
        if training and not state_mapping:
            return self._computed_loss(inputs, targets, outputs, training=True)
        model = self._built_model()
        trackers = [(v, tf.zeros(v.shape, v.dtype)) for v in model.metrics_variables]
        with keras.StatelessScope(state_mapping=[*state_mapping, *trackers]) as scope:
            model._losses_override = list(layer_losses)  # noqa: SLF001 - as Keras's trainer for JAX does
            try:
                loss = self._computed_loss(inputs, targets, outputs, training=training)
            finally:
                model._losses_override = []  # noqa: SLF001
        for variable, value in state_mapping:
            if scope.get_current_value(variable) is not value:
                raise WorkloadError(
                    f"train.workload {self._arguments.workload}: compute_loss of {type(model).__name__} changes {variable.path}, which parameter_server "
                    "does not save; change it in `call`, or use strategy single, mirrored or multi_worker_mirrored"
                )
        return loss

    def check_averaging(self, batches: int) -> None:
        """See HasTotalLoss.check_averaging."""
        loss = getattr(self._built_model(), "_compile_loss", None)
        losses = tf.nest.flatten(loss._user_loss) if loss is not None else []  # noqa: SLF001 - Keras has no public name for it
        if batches > 1 and any(getattr(one, "reduction", None) == "sum" for one in losses):
            raise WorkloadError(
                f"train.workload {self._arguments.workload}: the model is compiled with a loss whose reduction is 'sum', but a step takes the mean of "
                f"its {batches} batches; use reduction='sum_over_batch_size', with the learning rate multiplied by the number of examples in a batch, "
                "or train one batch a step"
            )

    def customizations(self) -> tuple[str, ...]:
        """See HasTrainStep.customizations."""
        return customizations(self._built_model())

    def prepare_steps(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        """See HasTrainStep.prepare_steps."""
        if self.customizations():
            model.optimizer = optimizer
            self._steps = KerasSteps(model, f"train.workload {self._arguments.workload}", self._data)

    def train_step(self, inputs: Any, targets: Any) -> dict[str, tf.Tensor]:
        """See HasTrainStep.train_step."""
        return self._ready_steps().train(inputs, targets)

    def reset(self) -> None:
        """See HasTrainStep.reset."""
        self._ready_steps().reset()

    def test_step(self, inputs: Any, targets: Any) -> dict[str, tf.Tensor]:
        """See HasTrainStep.test_step."""
        return self._ready_steps().test(inputs, targets)

    def metrics(self, targets: Any, outputs: Any) -> dict[str, tf.Tensor]:
        """See Workload.metrics: each metric's value on only this batch."""
        labels, weights = self._split_weights(targets)
        return self._metrics(labels, outputs, weights).of_batch(labels, outputs, weights)

    def held_out_metrics(self) -> "_CompiledHeldOutMetrics | None":
        """See HasHeldOutMetrics.held_out_metrics."""
        compiled = self._compiled_metrics.compiled if self._compiled_metrics is not None else None
        return None if compiled is None else _CompiledHeldOutMetrics(compiled, self._split_weights)

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        """See Workload.train_data."""
        return self._train.batches(shard)

    def train_examples(self) -> int | None:
        """See HasTrainExamples.train_examples."""
        return self._train.count()

    def eval_data(self, batch_size: int) -> tf.data.Dataset:
        """See Workload.eval_data."""
        return self._held_out.once(batch_size)

    def explained(self, error: Exception) -> WorkloadError | None:
        """See ExplainsErrors.explained."""
        reason = _shape_mismatch(error, self._arguments.workload.partition(":")[0])
        if self._model is None or not reason:
            return None
        shapes = [
            f"{name} gives {_shapes_of_data(*self._data(*data.first(1))[:2])}"
            for name, data in (("train_data", self._train), ("eval_data", self._held_out))
            if data.is_read
        ]
        return WorkloadError(
            f"train.workload {self._arguments.workload}: model and data do not fit: {reason}; {'; '.join([*shapes, _shapes_of_model(self._model)])}"
        )

    def _built_model(self) -> Any:
        if self._model is None:
            self.model()
        return self._model

    def _ready_steps(self) -> KerasSteps:
        assert self._steps is not None  # noqa: S101 - the engine calls prepare_steps first
        return self._steps

    def _computed_loss(self, inputs: Any, targets: Any, outputs: Any, *, training: bool) -> tf.Tensor:
        labels, weights = self._split_weights(targets)
        loss: tf.Tensor = self._built_model()._compute_loss(inputs, labels, outputs, weights, training=training)  # noqa: SLF001 - as `fit` does
        return loss

    def _data(self, inputs: Any, targets: Any) -> tuple[Any, ...]:
        """Return Keras's tuple, (x, y) or (x, y, sample_weight)."""
        labels, weights = self._split_weights(targets)
        return (inputs, labels) if weights is None else (inputs, labels, weights)

    def _split_weights(self, targets: Any) -> tuple[Any, Any]:
        weighted = isinstance(targets, dict) and targets.keys() == {"targets", "weights"}
        return (targets["targets"], targets["weights"]) if weighted else (targets, None)

    def _metrics(self, targets: Any, outputs: Any, weights: Any) -> "_CompiledMetrics":
        if self._compiled_metrics is None:
            with tf.init_scope():
                compiled = self._built_model()._compile_metrics  # noqa: SLF001 - Keras has no public name for what compile was given
                self._compiled_metrics = _CompiledMetrics(compiled, *self._dummy_batch(targets, outputs, weights))
        return self._compiled_metrics

    def _dummy_batch(self, targets: Any, outputs: Any, weights: Any) -> Any:
        """Return zeros shaped like one example, to build losses and metrics with.

        If the targets' width is unknown, a real example gives it, because Keras chooses the function for "accuracy" by it.
        """
        given = shaped = (targets, outputs, weights)
        if not all(t is None or t.shape[1:].is_fully_defined() for t in tf.nest.flatten(targets)):
            inputs, real = self._held_out.first(1)
            real_targets, real_weights = self._split_weights(real)
            shaped = (real_targets, self._built_model()(inputs), weights if real_weights is None else real_weights)
        return tf.nest.map_structure(
            lambda t, s: None if t is None else np.zeros([1, *(d or 1 for d in s.shape[1:])], t.dtype.as_numpy_dtype), given, shaped
        )


class _CompiledMetrics:
    """The metrics of a model's `compile`, with all their variables created."""

    def __init__(self, compiled: Any, targets: Any, outputs: Any, weights: Any) -> None:
        self.compiled = compiled
        if compiled is not None:
            # Some metrics create their variables when they first see data.
            compiled.update_state(targets, outputs, weights)
            compiled.reset_state()
        self._initial = [np.asarray(v.value) for v in compiled.variables] if compiled is not None else []

    def of_batch(self, targets: Any, outputs: Any, weights: Any) -> dict[str, tf.Tensor]:
        """Return the values on one batch, without a change of the metrics' own variables."""
        if self.compiled is None:
            return {}
        variables = self.compiled.stateless_update_state([tf.constant(v) for v in self._initial], targets, outputs, weights)
        # Within the scope, since a result may be the variable itself.
        with keras.StatelessScope(state_mapping=list(zip(self.compiled.variables, variables, strict=True))):
            return dict(flatten(self.compiled.result()))


class _CompiledHeldOutMetrics:
    """The metrics on a whole held-out set, batch by batch; see protocol.HeldOutMetrics."""

    def __init__(self, compiled: Any, split_weights: Callable[[Any], tuple[Any, Any]]) -> None:
        self._compiled, self._split_weights = compiled, split_weights  # Keras's CompileMetrics

    def reset(self) -> None:
        """Reset the metrics."""
        self._compiled.reset_state()

    def update(self, targets: Any, outputs: Any) -> None:
        """Add one batch; may be called in a graph."""
        labels, weights = self._split_weights(targets)
        self._compiled.update_state(labels, outputs, weights)

    def result(self) -> dict[str, float]:
        """Return the values on all batches since `reset`."""
        return {name: float(value) for name, value in flatten(self._compiled.result())}


def _check_fit(model: keras.Model, name: str) -> None:
    """Raise WorkloadError if a model is not compiled, or cannot be trained as `fit` would train it; `name` begins the message."""
    if not model.compiled or model.optimizer is None:
        raise WorkloadError(f"{name}: the model {model.name!r} has no loss and optimizer; call model.compile(optimizer=..., loss=...)")
    for method in _IGNORED:
        if overrides(model, method):
            raise WorkloadError(
                f"{name}: {type(model).__name__} has a {method} of its own, which would not be called: the trainer has its own loop. "
                "Move its work on a batch into train_step or test_step."
            )
    if model.run_eagerly:
        raise WorkloadError(f"{name}: the model is compiled with run_eagerly=True; the trainer only runs graphs. Leave it out.")
    for layer in model._flatten_layers():  # noqa: SLF001 - Keras has no public way to all of them
        if getattr(layer, "stateful", False):
            raise WorkloadError(
                f"{name}: the layer {layer.name!r} is stateful: its state continues from batch to batch, but here each batch has other examples; "
                "leave stateful=True out and give each example its whole sequence"
            )


def _check_loss(model: keras.Model, inputs: Callable[[], Any], name: str) -> None:
    """Raise WorkloadError if a built model has no loss to train or to evaluate with; `inputs` returns a batch of its inputs."""
    if getattr(model, "_compile_loss", None) is not None or overrides(model, "compute_loss"):
        return
    has_own_step = overrides(model, "train_step")
    if has_own_step and overrides(model, "test_step"):
        return
    if overrides(model, "call"):
        model(inputs())  # layers add their losses in a call
    # Not those of regularizers: they are no loss to train with.
    added = any(layer._get_own_losses() for layer in model._flatten_layers())  # noqa: SLF001 - Keras's `losses` has both kinds
    if not (added or has_own_step):
        raise WorkloadError(
            f"{name}: the model {model.name!r} is compiled without a loss, and no layer adds one (add_loss); call "
            "model.compile(optimizer=..., loss=...)"
        )
    if not model.losses:
        raise WorkloadError(
            f"{name}: the model {model.name!r} is compiled without a loss and has a train_step of its own, but no test_step; evaluations need "
            "a loss: give `compile` one, or write a `test_step`"
        )


def _shape_mismatch(error: Exception, module: str) -> str:
    """Return Keras's message if a model does not fit its data; nothing for other errors, and for errors with frames in the user's `module`."""
    known = isinstance(error, ValueError | tf.errors.InvalidArgumentError) and not isinstance(error, WorkloadError)
    if not known or not _SHAPE_MISMATCH.search(str(error)) or user_errors.user_frames(error, module):
        return ""
    return error_line(error).removeprefix(f"{type(error).__name__}: ")


def _shapes_of_data(inputs: Any, targets: Any) -> str:
    """Return the shapes of a batch of any size."""
    shown = (tf.nest.map_structure(lambda one: (None, *one.shape[1:]), part) for part in (inputs, targets))
    return "inputs {} and targets {}".format(*shown)


def _shapes_of_model(model: keras.Model) -> str:
    """Return a model's name, and its input and output shapes if it knows them."""
    shapes = [getattr(model, name, None) for name in ("input_shape", "output_shape")]
    return f"the model {model.name!r}" + ("" if None in shapes else " takes {} and gives {}".format(*shapes))
