"""Changes that `up` would make: each object as the cluster has it beside what it would be, as `kubectl diff` shows it; what it would delete, too."""

import difflib
from collections.abc import Iterator
from typing import Any

from launcher.backend.kubernetes import run_objects
from launcher.backend.kubernetes.client import Cluster, Object
from launcher.render.kubernetes.objects import Run
from launcher.render.yaml_text import text

# Fields and labels that the cluster adds to every object, and to the parts of a Job.
_METADATA = ("managedFields", "resourceVersion", "uid", "generation", "creationTimestamp", "ownerReferences", "selfLink", "generateName")
_OF_JOBS = ("controller-uid", "batch.kubernetes.io/controller-uid", "job-name", "batch.kubernetes.io/job-name")
_NOTED = "deployment.kubernetes.io/revision"


def differences(cluster: Cluster, run: Run) -> Iterator[str]:
    """Yield the lines of a unified diff; none where `up` would change nothing. Nothing is made. Raises LauncherError."""
    made = run_objects.objects(run, cluster)
    for one in made:
        kind, name = one["kind"], one["metadata"]["name"]
        new = run_objects.dry_run(cluster, one)
        new["metadata"]["name"] = name
        yield from _lines(cluster, kind, name, cluster.get(kind, name), new)
    used = {(one["kind"], one["metadata"]["name"]) for one in made}
    for left in run_objects.existing_objects(cluster, run.name):
        if (left.kind, left.name) not in used:
            yield from _lines(cluster, left.kind, left.name, cluster.get(left.kind, left.name), None)


def _lines(cluster: Cluster, kind: str, name: str, old: Object | None, new: Object | None) -> Iterator[str]:
    """Yield the lines of one object, None where it is not there."""
    before, after = ([] if one is None else text(_plain(one), {}).splitlines() for one in (old, new))
    deleted = "" if new else ", which deletes it"
    yield from difflib.unified_diff(before, after, f"{kind}/{name} in {cluster.namespace}", f"{kind}/{name} after up{deleted}", lineterm="")


def _plain(thing: Object) -> Object:
    """Return an object without what the cluster adds to it by itself."""
    plain: dict[str, Any] = {key: value for key, value in thing.items() if key != "status"}
    plain["metadata"] = _without(plain["metadata"], _METADATA)
    if annotations := _without(plain["metadata"].get("annotations") or {}, (_NOTED,)):
        plain["metadata"]["annotations"] = annotations
    else:
        plain["metadata"].pop("annotations", None)
    if plain["kind"] == "JobSet":
        plain["spec"] = _without(plain["spec"], ("suspend",))
    if plain["kind"] == "Job":
        template = plain["spec"]["template"]
        head = {**template["metadata"], "labels": _without(template["metadata"].get("labels") or {}, _OF_JOBS)}
        head.pop("creationTimestamp", None)
        plain["metadata"]["labels"] = _without(plain["metadata"].get("labels") or {}, _OF_JOBS)
        plain["spec"] = {**_without(plain["spec"], ("selector", "suspend")), "template": {**template, "metadata": head}}
    return {key: plain[key] for key in ("apiVersion", "kind", "metadata", *sorted(set(plain) - {"apiVersion", "kind", "metadata"}))}


def _without(mapping: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in keys}
