"""Loads the program with manual placement that `train.workload` names: a built-in, or `package.module:name` of the user's code."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from trainer.programs.cluster import Cluster
from trainer.settings import Train
from trainer.workloads import user_call
from trainer.workloads.catalog import CATALOG, parse_params
from trainer.workloads.errors import DataError, WorkloadError
from trainer.workloads.loading import find
from trainer.workloads.module_forms import CLUSTER
from trainer.workloads.user_call import CallArguments

Program = Callable[[Cluster], Any]


def load_program(train: Train) -> Program:
    """Return a function that runs the program that `train` names on a cluster, and returns its result.

    A built-in is called with the cluster, its parameters as its pydantic model, and the seed. A user's function gets the cluster first, and
    those of `params`, `data`, `seed` and of the parameters by name that it accepts.

    Raises:
        WorkloadError: there is no such program, its code cannot be imported, or it does not take what the settings give.
    """
    entry = CATALOG.get(train.workload)
    _, found = find(entry.import_path if entry else train.workload)
    if entry:
        params = parse_params(entry.params, train.params)
        if train.data != "synthetic":
            raise DataError(f"train.data {train.data}: {train.workload} makes what it needs; expected `synthetic`. Leave train.data out.")
        return lambda cluster: found(cluster, params, train.seed)
    name = f"train.workload {train.workload}"
    if isinstance(found, type) or not callable(found):
        raise WorkloadError(f"{name} is {_kind(found)}; strategy manual runs a function: def program({CLUSTER}, ...)")
    if next(iter(inspect.signature(found).parameters), None) != CLUSTER:
        raise WorkloadError(
            f"{name}: the first argument of {user_call.described(found)} is not `{CLUSTER}`. Strategy manual runs a function that takes the "
            f"connected cluster first: def program({CLUSTER}, ...). A model trains with another strategy."
        )
    arguments = CallArguments(train.workload, train.params, train.data, train.seed)
    user_call.check_params([functools.partial(found, None)], arguments)
    return lambda cluster: user_call.call(functools.partial(found, cluster), arguments)


def _kind(found: Any) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else type(found).__name__
