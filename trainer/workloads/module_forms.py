"""Recognizes the form of a user's `package.module:name`: a workload class, a compiled Keras model, or a model function.

    class            the workload protocol (protocol.py)
    model, function  a compiled keras.Model, or a function that returns one (keras_model.py)
    function         of (features, targets), (features, targets, mode) or (features, targets, mode, params) (model_function.py);
                     `targets` may be called `labels`

The last two take their data from `train_data` and `eval_data` of the same module, a Keras model also an optional `class_weight`.
"""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from trainer.workloads import user_call, user_callbacks
from trainer.workloads.errors import WorkloadError
from trainer.workloads.user_call import CallArguments, definition

# The first argument of a model function, which distinguishes it from one that returns a Keras model.
FEATURES = "features"
# The first argument of a program with manual placement, which strategy manual runs.
CLUSTER = "cluster"
SIGNATURES = (("features", "targets"), ("features", "targets", "mode"), ("features", "targets", "mode", "params"))
DATA = ("train_data", "eval_data")
# Optional in a Keras model's module.
CLASS_WEIGHT = "class_weight"
_SHOWN = tuple(f"({', '.join(names)})" for names in SIGNATURES)


def workload_from(found: Any, module: ModuleType, arguments: CallArguments) -> Any | None:
    """Return a workload for the object `found` of `module`, None if it is a workload class.

    Raises:
        WorkloadError: it has none of the forms, or its data is missing.
    """
    import keras

    name = f"train.workload {arguments.workload}"
    if isinstance(found, type):
        if issubclass(found, keras.Model):
            raise WorkloadError(f"{name} is a class of Keras models; name a function that returns one of them, compiled")
        _reject_class_weight(module, f"{name} is a workload class")
        return None
    if isinstance(found, keras.Model):
        return _keras_model(found, module, arguments)
    if not callable(found):
        raise WorkloadError(
            f"{name} is {type(found).__name__} in {module.__file__}; expected a workload class, a compiled Keras model, "
            f"a function that returns one, or a model function ({', '.join(_SHOWN)})"
        )
    names = tuple(inspect.signature(found).parameters)
    if names[:1] == (CLUSTER,):
        raise WorkloadError(
            f"{name} is a program with manual placement, {user_call.described(found)}, which only strategy manual runs; set strategy: manual"
        )
    if names[:1] != (FEATURES,):
        return _keras_model(found, module, arguments)
    return _model_function(found, names, module, arguments)


def _keras_model(found: Any, module: ModuleType, arguments: CallArguments) -> Any:
    import keras

    from trainer.workloads.keras_model import KerasWorkload

    definitions = _data(module, arguments)
    if (weights := definition(module, CLASS_WEIGHT)) is not None:
        definitions[CLASS_WEIGHT] = weights
    functions = (
        definitions.values() if isinstance(found, keras.Model) else (found, *definitions.values())
    )  # a model is not called with parameters
    user_call.check_params(functions, arguments)
    return KerasWorkload(found, definitions, arguments)


def _model_function(found: Callable[..., Any], names: tuple[str, ...], module: ModuleType, arguments: CallArguments) -> Any:
    from trainer.workloads.model_function import ModelFunctionWorkload

    if tuple("targets" if name == "labels" else name for name in names) not in SIGNATURES:
        raise WorkloadError(
            f"train.workload {arguments.workload}: {user_call.described(found)} takes ({', '.join(names)}); "
            f"a model function takes {', '.join(_SHOWN[:-1])} or {_SHOWN[-1]}. Rename its arguments, or take others from params."
        )
    _reject_class_weight(module, f"{user_call.described(found)} is a model function")
    definitions = _data(module, arguments)
    if "params" not in names:
        user_call.check_params(definitions.values(), arguments)
    return ModelFunctionWorkload(found, len(names), definitions, definition(module, "metrics"), arguments)


def _reject_class_weight(module: ModuleType, what: str) -> None:
    if definition(module, CLASS_WEIGHT) is not None:
        raise WorkloadError(
            f"{module.__file__} has a {CLASS_WEIGHT}, which only applies to compiled Keras models, and {what}; "
            "give sample weights or weight the loss, and rename it"
        )


def _data(module: ModuleType, arguments: CallArguments) -> dict[str, Any]:
    found = {name: definition(module, name) for name in (*DATA, user_callbacks.CALLBACKS)}
    missing = [name for name in DATA if found[name] is None]
    if missing:
        raise WorkloadError(
            f"train.workload {arguments.workload}: {module.__file__} has no {' and no '.join(missing)}. Add {'it' if len(missing) == 1 else 'them'}: "
            "a function that returns (inputs, targets) as arrays, or a tf.data.Dataset of examples; docs/workloads.md shows it."
        )
    return {name: value for name, value in found.items() if value is not None}
