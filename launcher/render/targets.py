"""The targets of `render`, by name; a renderer is imported only when it is used."""

import dataclasses
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.plan.models import Plan, Target
    from launcher.spec.models import ClusterSpec


@dataclass(frozen=True)
class RenderSource:
    """The input of a renderer. Paths in its text are relative to `directory`, in which the text will be written."""

    spec: "ClusterSpec"
    plan: "Plan"
    directory: Path
    title: str = ""  # the command that renders the text, for its first line


@dataclass(frozen=True)
class RenderTarget:
    """The target of the plan that a renderer takes, and the module of its function `render`: RenderSource -> YAML text.

    With `directory` the module also has `files`, which returns one file for each kind. `gang` replaces the spec's `kubernetes.gang`
    if it is not None. `examples` is the repository's directory of the examples rendered for it, if they are committed.
    """

    plan_target: "Target"
    module: str
    directory: bool = False
    gang: str | None = None
    examples: str | None = None

    def render(self, source: RenderSource) -> str:
        """Return a plan as one text."""
        return str(importlib.import_module(self.module).render(self._with_gang(source)))

    def files(self, source: RenderSource) -> dict[str, str]:
        """Return a plan as the files of a directory: file name -> text."""
        return dict(importlib.import_module(self.module).files(self._with_gang(source)))

    def _with_gang(self, source: RenderSource) -> RenderSource:
        if self.gang is None:
            return source
        options = source.spec.kubernetes.model_copy(update={"gang": self.gang})
        return dataclasses.replace(source, spec=source.spec.model_copy(update={"kubernetes": options}))


RENDER_TARGETS: dict[str, RenderTarget] = {
    "compose": RenderTarget("docker", "launcher.render.compose", examples="compose"),
    "kubernetes": RenderTarget("kubernetes", "launcher.render.kubernetes.manifests", directory=True, examples="k8s"),
    "jobset": RenderTarget("kubernetes", "launcher.render.kubernetes.manifests", directory=True, gang="jobset"),
}


def target(name: str) -> RenderTarget:
    """Return the target called `name`. Raises UsageError for an unknown name."""
    if name not in RENDER_TARGETS:
        raise UsageError(f"there is no render target {name!r}", f"use one of: {', '.join(RENDER_TARGETS)}")
    return RENDER_TARGETS[name]
