"""What a spec can be rendered to, by name; a renderer is imported only when it is used."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from launcher.errors import UsageError
from launcher.plan.models import Plan, Target
from launcher.spec.models import ClusterSpec


@dataclass(frozen=True)
class Source:
    """What a renderer starts from. `directory` is where its text will lie: paths in it are relative to there."""

    spec: ClusterSpec
    plan: Plan
    directory: Path
    title: str = ""  # how the text was made, for its first line


Renderer = Callable[[Source], str]
# File name -> text, for a target that is a directory.
DirectoryRenderer = Callable[[Source], dict[str, str]]


@dataclass(frozen=True)
class RenderTarget:
    """Which plan a renderer takes, and where its function `render` is: Source -> YAML text.

    `directory` says that its module also has `files`: what is written is one file a kind, not one file.
    """

    plan: Target
    module: str
    directory: bool = False


TARGETS: dict[str, RenderTarget] = {
    "compose": RenderTarget("docker", "launcher.render.compose"),
    "kubernetes": RenderTarget("kubernetes", "launcher.render.kubernetes.manifests", directory=True),
    "jobset": RenderTarget("kubernetes", "launcher.render.kubernetes.as_jobset", directory=True),
}


def target(name: str) -> RenderTarget:
    """Return the target called `name`. Raises UsageError for a name that is none."""
    if name not in TARGETS:
        raise UsageError(f"there is nothing called {name!r} to render to", f"use one of: {', '.join(TARGETS)}")
    return TARGETS[name]


def renderer(name: str) -> Renderer:
    """Return the renderer of the target called `name`. Raises UsageError for a name that is none."""
    return cast("Renderer", importlib.import_module(target(name).module).render)


def directory_renderer(name: str) -> DirectoryRenderer:
    """Return what renders the target called `name` as several files. Raises UsageError for a name that is none."""
    return cast("DirectoryRenderer", importlib.import_module(target(name).module).files)
