"""The backends by name; one is imported only when it is used."""

import importlib
from pathlib import Path
from typing import cast, get_args

from launcher.backend.model import Backend, Where
from launcher.cli.options import placed
from launcher.errors import UsageError
from launcher.plan.models import Target

# Each is called as the target of its plans.
BACKENDS: dict[Target, str] = {
    "local": "launcher.backend.local.backend:LocalBackend",
    "docker": "launcher.backend.docker.backend:DockerBackend",
    "kubernetes": "launcher.backend.kubernetes.backend:KubernetesBackend",
}
# Of which there are several places to run: these take the place too.
_PLACED = frozenset({"kubernetes"})


def check_backend(name: str) -> Target:
    """Return the target of the backend called `name`. Raises UsageError for a name that is none."""
    for known in BACKENDS:
        if known == name:
            return known
    raise UsageError(f"there is no backend {name!r} in this version", f"use one of: {', '.join(BACKENDS)}")


def check_target(name: str) -> Target:
    """Return the target of the plans called `name`: there may be manifests for it and no backend. Raises UsageError for none."""
    for known in get_args(Target):
        if known == name:
            return cast("Target", known)
    raise UsageError(f"there is nothing called {name!r} to plan for", f"use one of: {', '.join(get_args(Target))}")


def open_backend(name: str, runs: Path, where: Where | None = None) -> Backend:
    """Return the backend called `name`, which keeps its runs under `runs`; `where` says which cluster.

    Raises UsageError for a name that is none, and for a cluster where there is none.
    """
    module, _, attribute = BACKENDS[check_backend(name)].partition(":")
    make = getattr(importlib.import_module(module), attribute)
    if name in _PLACED:
        where = where or Where()
        context, namespace = placed(name, where.context, where.namespace)
        return cast("Backend", make(runs, Where(context, namespace)))
    if where is not None and (where.context or where.namespace):
        raise UsageError(f"--context and --namespace are for clusters; {name} is none", "leave them out, or say --on kubernetes")
    return cast("Backend", make(runs))
