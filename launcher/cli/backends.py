"""The backends by name; one is imported only when it is used."""

import importlib
from pathlib import Path
from typing import cast

from launcher.backend.model import Backend
from launcher.errors import UsageError

BACKENDS: dict[str, str] = {"local": "launcher.backend.local.backend:LocalBackend"}


def check_backend(name: str) -> str:
    """Return where the backend called `name` is defined. Raises UsageError for a name that is none."""
    if name not in BACKENDS:
        raise UsageError(f"there is no backend {name!r} in this version", f"use one of: {', '.join(BACKENDS)}")
    return BACKENDS[name]


def open_backend(name: str, runs: Path) -> Backend:
    """Return the backend called `name`, which keeps its runs under `runs`. Raises UsageError for a name that is none."""
    module, _, attribute = check_backend(name).partition(":")
    return cast("Backend", getattr(importlib.import_module(module), attribute)(runs))
