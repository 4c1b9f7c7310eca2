"""Calls the functions of a user's module with the arguments that they accept: `params`, `data`, `seed`, and parameters by name."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from trainer.workloads.errors import WorkloadError

_RESERVED = ("params", "data", "seed")


@dataclass(frozen=True)
class CallArguments:
    """The arguments of a user's code from a spec's `train` section."""

    workload: str  # as the spec names it, for messages
    params: Mapping[str, Any]
    data: str
    seed: int


def definition(module: ModuleType, name: str) -> Any | None:
    """Return the user's definition of an optional name, None without one: `from keras import metrics` imports a module and defines nothing."""
    found = getattr(module, name, None)
    return None if isinstance(found, ModuleType) else found


def call(function: Callable[..., Any], arguments: CallArguments) -> Any:
    """Call `function` with those of `params`, `data`, `seed` and of the parameters by name that it takes.

    Raises:
        WorkloadError: it requires an argument that is not given.
    """
    values = {**arguments.params, "params": dict(arguments.params), "data": arguments.data, "seed": arguments.seed}
    positional: dict[str, Any] = {}
    keywords: dict[str, Any] = {}
    for parameter in _parameters(function):
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            keywords |= {name: value for name, value in arguments.params.items() if name not in positional and name not in keywords}
        elif parameter.kind is parameter.POSITIONAL_ONLY and (parameter.name in values or parameter.default is not parameter.empty):
            positional[parameter.name] = values.get(parameter.name, parameter.default)
        elif parameter.name in values:
            keywords[parameter.name] = values[parameter.name]
        elif parameter.default is parameter.empty:
            raise WorkloadError(
                f"train.workload {arguments.workload}: {described(function)} requires {parameter.name!r}, which is not given. "
                f"Set train.params.{parameter.name}, give it a default, or take one of {', '.join(_RESERVED)}."
            )
    return function(*positional.values(), **keywords)


def check_params(functions: Iterable[Any], arguments: CallArguments) -> None:
    """Raise WorkloadError when there is a parameter that none of `functions` takes: it would silently do nothing."""
    taken: set[str] = set()
    for function in functions:
        for parameter in _parameters(function) if callable(function) else ():
            if parameter.name == "params" or parameter.kind is parameter.VAR_KEYWORD:
                return
            taken.add(parameter.name)
    known = sorted(taken - set(_RESERVED))
    for name in arguments.params:
        if name in _RESERVED:
            remedy = "write its values there directly" if name == "params" else "set that"
            raise WorkloadError(
                f"train.params.{name}: the argument {name!r} of functions of {arguments.workload} is train.{name}; {remedy}"
            )
        if name not in taken:
            similar = difflib.get_close_matches(name, known, n=1)
            remedy = (
                f"did you mean {similar[0]!r}?" if similar else f"expected {', '.join(known) or 'none'}, or a function that takes `params`"
            )
            raise WorkloadError(f"train.params.{name}: no function of {arguments.workload} takes an argument {name!r}; {remedy}")


def described(function: Callable[..., Any]) -> str:
    """Return a function's name and location, for messages."""
    function = function.func if isinstance(function, functools.partial) else function
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def _parameters(function: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    try:
        return inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return ()
