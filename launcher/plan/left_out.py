"""What a spec says and a target has no counterpart of: each is named, so that nothing is left out without a word. Pure."""

from collections.abc import Callable

from launcher.plan.models import Target
from launcher.spec.models import ClusterSpec

# How messages call a target.
PLACES: dict[Target, str] = {"local": "on this machine", "docker": "in Compose", "kubernetes": "on Kubernetes"}


def left_out(spec: ClusterSpec, target: Target) -> list[str]:
    """Return what becomes of the parts of a spec that the target cannot do, a sentence each, without the target."""
    return [words for look in _OF[target] for words in look(spec)]


def _env_file(spec: ClusterSpec) -> list[str]:
    return ["env_file is not read: the cluster's own Secrets have the values"] if spec.env_file else []


_OF: dict[Target, tuple[Callable[[ClusterSpec], list[str]], ...]] = {
    "local": (),
    "docker": (),
    "kubernetes": (_env_file,),
}
