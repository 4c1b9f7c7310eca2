"""`render --to jobset`: what `kubernetes: {gang: jobset}` renders to, whether the spec has that or not. Pure."""

import dataclasses

from launcher.render.kubernetes import manifests
from launcher.render.targets import Source


def render(source: Source) -> str:
    """Return the manifests of a plan for kubernetes, its tasks as a JobSet. Raises UsageError for what cannot run there."""
    return manifests.render(_joined(source))


def files(source: Source) -> dict[str, str]:
    """Return the same as a directory: file name -> text, one file a kind and a kustomization."""
    return manifests.files(_joined(source))


def _joined(source: Source) -> Source:
    options = source.spec.kubernetes.model_copy(update={"gang": "jobset"})
    return dataclasses.replace(source, spec=source.spec.model_copy(update={"kubernetes": options}))
