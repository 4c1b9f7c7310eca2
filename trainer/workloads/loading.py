"""Loads the workload that `train.workload` names: a built-in, or `package.module:name` of the user's code."""

import importlib
import inspect
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

from trainer.settings import Train
from trainer.workloads.catalog import CATALOG
from trainer.workloads.errors import WorkloadError
from trainer.workloads.protocol import Agent, Workload
from trainer.workloads.user_call import CallArguments, definition

REQUIRED = ("model", "optimizer", "loss", "metrics", "train_data", "eval_data")


def load_workload(train: Train) -> Workload:
    """Return the workload that `train` names: an object of its class, or a wrapper of a Keras model or a model function.

    A class is constructed as `Class(params=..., data=..., seed=...)`.

    Raises WorkloadError if there is no such workload, its code cannot be imported, it cannot be constructed from its
    `params`, or methods of the protocol are missing; DataError if its data is missing or wrong.
    """
    entry = CATALOG.get(train.workload)
    module, found = find(entry.import_path if entry else train.workload)
    if entry:
        return _construct_workload(found, entry.import_path, train)
    from trainer.workloads.autograph import convert_workload
    from trainer.workloads.module_forms import workload_from
    from trainer.workloads.user_callbacks import CALLBACKS, UserCallbacks

    arguments = CallArguments(train.workload, train.params, train.data, train.seed)
    workload = workload_from(found, module, arguments)
    if workload is None:
        workload = _construct_workload(found, train.workload, train)
        convert_workload(workload)
        callbacks = definition(module, CALLBACKS)
        if callbacks is not None and not hasattr(workload, "callbacks"):
            try:
                setattr(workload, CALLBACKS, UserCallbacks(callbacks, arguments))
            except AttributeError as error:  # the class has __slots__
                raise WorkloadError(
                    f"train.workload {train.workload}: {module.__file__} has {CALLBACKS}, which its class has no place for; give the class a method "
                    f"{CALLBACKS}, or add {CALLBACKS!r} to its __slots__"
                ) from error
    return cast("Workload", workload)


def load_agent(train: Train) -> Agent | None:
    """Return the agent that `train` names, None if it names a workload that is not an agent. Raises as `load_workload`."""
    entry = CATALOG.get(train.workload)
    if entry is None or not entry.agent:
        return None
    _, found = find(entry.import_path)
    return cast("Agent", _construct(found, entry.import_path, train))


def _construct(cls: Any, target: str, train: Train) -> Any:
    """Return an object of the class. Raises WorkloadError, which names the arguments, if it cannot be constructed."""
    try:
        return cls(params=train.params, data=train.data, seed=train.seed)
    except WorkloadError:
        raise
    except Exception as error:
        message = (
            f"train.workload {train.workload}: {target}(params={train.params!r}, data={train.data!r}, seed={train.seed}) failed: "
            f"{_describe(error)}. Expected a class that takes `params`, `data` and `seed`."
        )
        raise WorkloadError(message) from error


def _construct_workload(cls: Any, target: str, train: Train) -> Workload:
    workload = _construct(cls, target, train)
    missing = [name for name in REQUIRED if not callable(getattr(workload, name, None))]
    if missing:
        message = (
            f"train.workload {train.workload}: {target} has no method {', '.join(missing)}. "
            "Add what is missing; docs/workloads.md shows a whole workload."
        )
        raise WorkloadError(message)
    return cast("Workload", workload)


def find(target: str) -> tuple[ModuleType, Any]:
    """Import `package.module:name` and return the module and the object of that name. Raises WorkloadError."""
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        message = (
            f"train.workload {target!r}: no such workload. Expected {', '.join(sorted(CATALOG))}, or package.module:name of your code."
        )
        raise WorkloadError(message)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise WorkloadError(_not_found(target, module_name, error)) from error
    except Exception as error:
        message = f"train.workload {target}: importing {module_name} failed: {_describe(error)}. Correct it there."
        raise WorkloadError(message) from error
    if not hasattr(module, name):
        own = {kind: [n for n, v in vars(module).items() if fits(v) and v.__module__ == module_name] for kind, fits in _KINDS.items()}
        available = ". ".join(f"Its {kind}: {', '.join(sorted(names)) or 'none'}" for kind, names in own.items())
        message = f"train.workload {target}: {module.__file__} has no {name}. {available}."
        raise WorkloadError(message)
    return module, getattr(module, name)


_KINDS: dict[str, Callable[[Any], bool]] = {"classes": inspect.isclass, "functions": inspect.isfunction}


def _not_found(target: str, module_name: str, error: ModuleNotFoundError) -> str:
    absent = error.name or module_name
    if f"{module_name}.".startswith(f"{absent}."):
        return (
            f"train.workload {target}: no module {absent} on Python's path. "
            "Put its directory in the spec's `code`, or install it in the task's environment."
        )
    return (
        f"train.workload {target}: {module_name} imports {absent}, which is not installed here ({_describe(error)}). "
        "Install it in the task's environment or image."
    )


def _describe(error: BaseException) -> str:
    """Describe an error, with the file and line that raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({error.filename}:{error.lineno})"
    else:
        where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}{where}"
