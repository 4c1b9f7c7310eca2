"""A model function as a workload: (features, targets[, mode[, params]]) -> predictions, loss, train op.

The function computes predictions and loss together, so the workload's model takes (features, targets) and
returns both; the workload's `loss` selects the loss. The train op names the optimizer (train_op.py).
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from trainer.workloads.autograph import converted
from trainer.workloads.errors import WorkloadError
from trainer.workloads.function_variables import FunctionVariables, StatelessVariable
from trainer.workloads.protocol import Shard
from trainer.workloads.train_op import TrainOp
from trainer.workloads.user_call import CallArguments, described
from trainer.workloads.user_callbacks import CALLBACKS, UserCallbacks
from trainer.workloads.user_data import UserData

# The values of `mode`, as tf.estimator.ModeKeys has them.
TRAIN, EVAL = "train", "eval"
# Examples for the call that creates the variables; a single one is a special case in some layers.
_BUILD_EXAMPLES = 2


class ModelFunctionWorkload:
    """A model function as a workload, with its module's data and optional `metrics(targets, predictions)`."""

    def __init__(
        self,
        function: Callable[..., Any],
        argument_count: int,
        definitions: Mapping[str, Any],
        metrics: Callable[..., Any] | None,
        arguments: CallArguments,
    ) -> None:
        self._call = _CheckedFunction(function, argument_count, arguments)
        self._measure = converted(metrics) if metrics is not None else None
        self.callbacks = UserCallbacks(definitions.get(CALLBACKS), arguments)
        self._train = UserData(definitions["train_data"], arguments, "train_data")
        self._held_out = UserData(definitions["eval_data"], arguments, "eval_data", training=self._train)
        self._optimizer: keras.optimizers.Optimizer | None = None

    def model(self) -> keras.Model:
        """See Workload.model."""
        model = _Model(self._call)
        self._optimizer = model.create_variables(*self._train.first(_BUILD_EXAMPLES))
        return model

    def optimizer(self) -> keras.optimizers.Optimizer:
        """See Workload.optimizer."""
        if self._optimizer is None:
            self.model()
        return self._optimizer

    def loss(self, _targets: Any, outputs: Any) -> tf.Tensor:
        """See Workload.loss."""
        return outputs["loss"]

    def metrics(self, targets: Any, outputs: Any) -> dict[str, tf.Tensor]:
        """See Workload.metrics."""
        return dict(self._measure(targets, outputs["predictions"])) if self._measure is not None else {}

    def train_data(self, shard: Shard) -> tf.data.Dataset:
        """See Workload.train_data."""
        return self._train.batches(shard).map(_with_targets)

    def train_examples(self) -> int | None:
        """See HasTrainExamples.train_examples."""
        return self._train.count()

    def eval_data(self, batch_size: int) -> tf.data.Dataset:
        """See Workload.eval_data."""
        return self._held_out.once(batch_size).map(_with_targets)


def _with_targets(features: Any, targets: Any) -> tuple[Any, Any]:
    return (features, targets), targets


class _CheckedFunction:
    """Calls the user's function and checks what it returns."""

    def __init__(self, function: Callable[..., Any], argument_count: int, arguments: CallArguments) -> None:
        self.name = f"train.workload {arguments.workload}: {described(function)}"
        self._function, self._argument_count, self._params = converted(function), argument_count, dict(arguments.params)

    def __call__(self, features: Any, targets: Any, mode: str) -> tuple[Any, tf.Tensor, Any]:
        try:
            result = self._function(*(features, targets, mode, self._params)[: self._argument_count])
        except RuntimeError as error:
            if "should be a function when eager execution is enabled" not in str(error):
                raise
            raise WorkloadError(f"{self.name} minimizes with an optimizer of TensorFlow 1; {_TRAIN_OP}") from error
        if not isinstance(result, tuple) or len(result) != 3:
            shown = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise WorkloadError(f"{self.name} returned {shown}; expected predictions, loss, train op")
        predictions, loss, train_op = result
        loss = tf.convert_to_tensor(loss)
        if loss.shape.rank != 0 or not loss.dtype.is_floating:
            raise WorkloadError(
                f"{self.name} returned a loss of {loss.dtype.name} and shape {loss.shape}; expected one number, a mean over the batch"
            )
        return predictions, loss, train_op


_TRAIN_OP = (
    "expected as train op a Keras optimizer, or minimize(loss, optimizer) of trainer.workloads.train_op: "
    "the trainer computes the gradients, combines those of the replicas and applies them"
)


class _Model(keras.Model):
    """Has the function's variables; called with (features, targets), returns its predictions and its loss."""

    export_formats = ("saved_model",)  # a Keras file could not be read without the trainer

    def __init__(self, call: _CheckedFunction) -> None:
        super().__init__(name="model_function", autocast=False)
        self._function = call
        self._variables = FunctionVariables(self.add_weight, call.name)
        self._specs: tuple[Any, ...] = ()

    def create_variables(self, features: Any, targets: Any) -> keras.optimizers.Optimizer:
        """Create the variables by a first call on a few examples; return the optimizer."""
        _, loss, train_op = self._variables.create(lambda: self._function(features, targets, TRAIN))
        for name, variable in self._variables.created.items():
            setattr(self, f"own/{name}", variable)  # checkpoints only have attributes
        self.built = True
        # A tuple stays a tuple: Keras would wrap a list.
        self._specs = tuple(
            tf.nest.map_structure(lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), part) for part in (features, targets)
        )
        if isinstance(train_op, TrainOp):
            if train_op.loss is not loss:
                raise WorkloadError(f"{self._function.name}: the train op does not minimize the returned loss; expected the same tensor")
            return train_op.optimizer
        if isinstance(train_op, keras.optimizers.Optimizer):
            return train_op
        raise WorkloadError(f"{self._function.name} returned {type(train_op).__name__} as train op; {_TRAIN_OP}")

    def call(self, inputs: tuple[Any, Any], training: bool | None = None) -> dict[str, Any]:
        """Return {"predictions": ..., "loss": ...}."""
        return self._outputs(inputs, None, training=bool(training))

    def stateless_call(
        self, trainable_variables: Any, non_trainable_variables: Any, inputs: Any, *, training: bool = False, return_losses: bool = False
    ) -> tuple[Any, ...]:
        """See keras.Model.stateless_call: compute with the given values, and return the outputs and the updated values."""
        values = {
            id(variable): value
            for variables, given in (
                (self.trainable_variables, trainable_variables),
                (self.non_trainable_variables, non_trainable_variables),
            )
            for variable, value in zip(variables, given, strict=True)
        }
        stateless = {key: StatelessVariable(tf.convert_to_tensor(values[id(v)]), key) for key, v in self._variables.created.items()}
        outputs = self._outputs(inputs, stateless, training=training)
        by_id = {id(self._variables.created[key]): variable for key, variable in stateless.items()}
        after = [by_id[id(variable)].current for variable in self.non_trainable_variables]
        return (outputs, after, []) if return_losses else (outputs, after)

    def export(self, filepath: str, format: str = "tf_saved_model", **options: Any) -> None:  # noqa: A002 - Keras's name for it
        """See keras.Model.export: the endpoint takes only features and returns predictions."""
        spec, target_spec = self._specs
        if format != "tf_saved_model":
            raise ValueError(f"a model function is only exported as tf_saved_model, not as {format}")

        def serve(features: Any) -> Any:
            # The function needs targets for its loss, which is not used.
            size = tf.shape(tf.nest.flatten(features)[0])[0]
            targets = tf.nest.map_structure(lambda one: tf.zeros([size, *one.shape[1:]], one.dtype), target_spec)
            return self._outputs((features, targets), None, training=False)["predictions"]

        archive = keras.export.ExportArchive()
        archive.track(self)
        archive.add_endpoint("serve", serve, input_signature=[spec])
        archive.write_out(filepath, verbose=options.get("verbose", False))

    def _outputs(self, inputs: tuple[Any, Any], given: Mapping[str, StatelessVariable] | None, *, training: bool) -> dict[str, Any]:
        features, targets = inputs
        mode = TRAIN if training else EVAL

        def run() -> Any:
            # Keras layers take `training` from the calling layer; here it comes from `mode`.
            return self._function(features, targets, mode)

        predictions, loss, _ = self._variables.reuse(run, given, require_all=training)
        return {"predictions": predictions, "loss": loss}
