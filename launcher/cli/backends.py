"""The backends by name; one is imported only when it is used."""

import importlib
from pathlib import Path
from typing import cast, get_args

from launcher.backend.model import Backend
from launcher.errors import UsageError
from launcher.plan.models import Target

# Each is called as the target of its plans.
BACKENDS: dict[Target, str] = {
    "local": "launcher.backend.local.backend:LocalBackend",
    "docker": "launcher.backend.docker.backend:DockerBackend",
}


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


def open_backend(name: str, runs: Path) -> Backend:
    """Return the backend called `name`, which keeps its runs under `runs`. Raises UsageError for a name that is none."""
    module, _, attribute = BACKENDS[check_backend(name)].partition(":")
    return cast("Backend", getattr(importlib.import_module(module), attribute)(runs))
